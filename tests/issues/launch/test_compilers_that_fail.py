"""Triton 3.6 does not compile some texts with tiles of one size: "operand #0 does not dominate this use".

The region was given up, or, if strict, the call raised. Found by random programs on a GPU. With other tiles the same
text compiles, so the next smaller ones are tried.
"""

import pytest
from triton.runtime.errors import PTXASError

from onepass.lowering.plan.kernel_config import TritonConfig
from onepass.lowering.plan.records import NotPlannable
from onepass.lowering.triton.launch import LaunchError
from tests.support.ahead_of_time import plan_of
from tests.support.pretended import Pretended, prepared, pretend


def launched(monkeypatch, fails, config=None):
    """The configurations that are tried where the compiler raises this for each."""
    pretend(monkeypatch, most=10**9)
    launcher = Pretended(plan_of("full", 64, "bfloat16"), config, fails=fails)
    prepared(launcher)
    return launcher.tried


@pytest.mark.parametrize("error", [RuntimeError("PassManager::run failed"), PTXASError("ptxas died")])
def test_the_next_smaller_tiles_are_tried(monkeypatch, error):
    first, *_, last = launched(monkeypatch, lambda config: error if config.row_tile > 32 else None)
    assert first.row_tile > 32 >= last.row_tile


def test_without_any_that_compile_there_is_no_kernel(monkeypatch):
    with pytest.raises(NotPlannable, match="kernel0 is not compiled, as Triton's compiler fails, with tiles 16x16"):
        launched(monkeypatch, lambda config: RuntimeError("PassManager::run failed"))


def test_a_configuration_that_was_asked_for_is_not_replaced(monkeypatch):
    with pytest.raises(LaunchError, match="Triton's compiler fails, with tiles 128x128"):
        launched(monkeypatch, lambda config: RuntimeError("PassManager::run failed"), TritonConfig(128, 128, 4, 2))


def test_an_error_of_the_text_is_raised(monkeypatch):
    with pytest.raises(RuntimeError, match="no such name"):
        launched(monkeypatch, lambda config: RuntimeError("no such name"))

"""Long items have programs of their own, and all items run once; short ones are shared out among few programs."""

import pytest
import torch

from onepass.lowering.hopper import kernel_class
from onepass.lowering.hopper.config import HopperConfig
from onepass.lowering.hopper.kernel_class import MIN_LONG_COLUMNS, is_long
from onepass.lowering.hopper.kernel_form import bind
from onepass.lowering.launch.triton_compat import gluon_missing
from tests.proofs.texts.test_check import plan_of as planned
from tests.support.gluon_ahead_of_time import inputs_of, plain, plan_of
from tests.support.on_hopper import hold, hopper_texts, pretend_hopper


def of_length(kind, length):
    return bind(plan_of(kind, 64, rows=length, columns=length, batch=1, heads=1).kernels[0])


@pytest.mark.parametrize(
    "kind, length, long",
    [
        ("full", MIN_LONG_COLUMNS, True),
        ("full", MIN_LONG_COLUMNS // 2, False),
        ("causal", MIN_LONG_COLUMNS, False),  # nine in ten tiles of rows run less
        ("causal", 2 * MIN_LONG_COLUMNS, True),
        ("window", 2 * MIN_LONG_COLUMNS, False),
    ],
)
def test_an_item_is_long_by_what_runs_of_its_loop(kind, length, long):
    assert is_long(of_length(kind, length), {}) == long


def test_a_map_says_how_long_items_are():
    binding = of_length("documents", 2 * MIN_LONG_COLUMNS)
    assert [is_long(binding, {}, run) for run in (None, 4096.0, float(MIN_LONG_COLUMNS))] == [False, False, True]


@pytest.mark.skipif(gluon_missing() is not None, reason="needs Gluon")
@pytest.mark.parametrize("kind", ["full", "causal", "documents"])
def test_programs_of_one_item_compute_their_terms(kind, monkeypatch):
    pretend_hopper(monkeypatch, maps=kind == "documents")
    monkeypatch.setattr(kernel_class, "MIN_LONG_COLUMNS", 64)
    torch.manual_seed(0)
    given = inputs_of(kind, 32, rows=448, columns=448, batch=1, heads=2)
    plan, tensors = planned(plain(kind), given)
    counts = []
    for least in (64, 1 << 20):
        monkeypatch.setattr(kernel_class, "MIN_LONG_COLUMNS", least)
        (one,) = texts = hopper_texts(plan, tensors, HopperConfig(consumers=1, loop_tile=64))
        counts.append(one.calls[0].programs)
        hold(texts)
    assert counts == [14, 3]

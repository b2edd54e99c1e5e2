"""A kernel that kept hundreds of registers in memory took 190 times as long as the calls that it stood for."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch

from onepass.lowering import triton_launch
from onepass.lowering.triton_launch import Launcher, LaunchError
from onepass.lowering.tuning import SPILLED, Config
from tests.ahead_of_time import plan_of

GPU = torch.device("cuda", 0)


def prepared(monkeypatch, spills, config=None):
    """The configuration that a kernel is launched with where the compiler says of each how many registers spill."""
    plan = plan_of("full", 64, "bfloat16")
    launcher = Launcher(plan, config)

    def launch(kernel, config, *_):
        compiled = SimpleNamespace(asm={}, metadata=SimpleNamespace(shared=1), n_spills=spills(config))
        compiled._init_handles = lambda: None
        return SimpleNamespace(config=config, function=None, programs=1, compiled=lambda values: compiled)

    monkeypatch.setattr(launcher, "_launch", launch)
    monkeypatch.setattr(triton_launch, "interprets", lambda function: False)
    monkeypatch.setattr(triton_launch, "shared_memory", lambda device: 2)
    monkeypatch.setattr(triton_launch, "architecture", lambda device: "sm_90")
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    return launcher._prepare(plan.kernels[0], {}, {}, GPU).config


def test_a_kernel_that_spills_gets_smaller_tiles(monkeypatch):
    usual = prepared(monkeypatch, lambda config: SPILLED)
    smaller = prepared(monkeypatch, lambda config: 264 if config.rows * config.loop > 32 * 32 else 0)
    assert usual.rows * usual.loop > 32 * 32 >= smaller.rows * smaller.loop


def test_one_that_spills_with_any_tiles_is_not_launched(monkeypatch):
    with pytest.raises(LaunchError, match="keeps 264 registers of a thread in memory with tiles 16x16"):
        prepared(monkeypatch, lambda config: 264)


def test_a_configuration_that_was_asked_for_is_launched_as_it_is(monkeypatch):
    asked = Config(128, 128, 4, 2)
    assert prepared(monkeypatch, lambda config: 264, asked) == asked

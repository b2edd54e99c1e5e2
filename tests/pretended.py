"""A GPU that is not there: a launcher whose kernels need what it is told, and what stands in for the device.

Used by tests of how tiles are chosen; nothing is compiled or launched.
"""

from contextlib import nullcontext
from types import SimpleNamespace

import torch

from onepass.lowering import triton_launch
from onepass.lowering.triton_launch import Launcher
from onepass.lowering.tuning import SPILLED

MOST = 1024 * 100  # bytes of shared memory that it has: tiles of 1024 elements


class Pretended(Launcher):
    """`tried` lists the configurations; spills: registers that a thread keeps in memory, ptx: a text, both of one."""

    def __init__(self, plan, config=None, ptx=lambda config: "", spills=lambda config: 0):
        super().__init__(plan, config)
        self.tried, self.ptx, self.spills = [], ptx, spills

    def _launch(self, kernel, config, values, sizes, device):
        self.tried.append(config)
        needed = SimpleNamespace(shared=config.loop * config.rows * 100)
        needs = SimpleNamespace(asm={"ptx": self.ptx(config)}, metadata=needed, n_spills=self.spills(config))
        needs._init_handles = lambda: None
        given = {"function": None, "programs": 1, "spilled": SPILLED}
        return SimpleNamespace(**given, compiled=lambda values: needs)


def pretend(monkeypatch, most=MOST) -> None:
    monkeypatch.setattr(triton_launch, "shared_memory", lambda device: most)
    monkeypatch.setattr(triton_launch, "interprets", lambda function: False)
    monkeypatch.setattr(triton_launch, "architecture", lambda device: "sm_90")
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())


def prepared(launcher):
    return launcher._prepare(launcher.plan.kernels[0], {}, {}, torch.device("cuda", 0))

"""A GPU that is not there: a launcher whose kernels need what it is told, and what stands in for the device.

Used by tests of how tiles are chosen; nothing is compiled or launched.
"""

from contextlib import nullcontext
from types import SimpleNamespace

import torch

from onepass.lowering.triton import launch
from onepass.lowering.triton.default_config import MAX_SPILLED_REGISTERS
from onepass.lowering.triton.launch import Launcher

MOST = 1024 * 100  # bytes of shared memory that it has: tiles of 1024 elements


class Pretended(Launcher):
    """`tried` lists the configurations. Of each one: spills are the registers that a thread keeps in memory, ptx is the
    text, and fails is what the compiler raises.
    """

    def __init__(self, plan, config=None, ptx=lambda config: "", spills=lambda config: 0, fails=lambda config: None):
        super().__init__(plan, config)
        self.tried, self.ptx, self.spills, self.fails = [], ptx, spills, fails

    def _launch(self, kernel, config, values, sizes, device):
        self.tried.append(config)
        needed = SimpleNamespace(shared=config.loop_tile * config.row_tile * 100)
        needs = SimpleNamespace(asm={"ptx": self.ptx(config)}, metadata=needed, n_spills=self.spills(config))
        needs._init_handles = lambda: None
        given = {"function": None, "programs": 1, "spilled": MAX_SPILLED_REGISTERS}

        def compiled(values):
            if (error := self.fails(config)) is not None:
                raise error
            return needs

        return SimpleNamespace(**given, compiled=compiled)


def pretend(monkeypatch, most=MOST) -> None:
    monkeypatch.setattr(launch, "shared_memory", lambda device: most)
    monkeypatch.setattr(launch, "interprets", lambda function: False)
    monkeypatch.setattr(launch, "architecture", lambda device: "sm_90")
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())


def prepared(launcher):
    return launcher._prepare(launcher.plan.kernels[0], {}, {}, torch.device("cuda", 0))

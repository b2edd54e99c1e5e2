"""What bench/configurations.py measures: the problems, and for each executor its settings and how it launches a plan.

An executor is a row of EXECUTORS. A setting that cannot be launched as asked is an error there, never another kernel.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import product

TOKENS, HIDDEN, WINDOW, CAP = 16384, 2048, 1024, 30.0


@dataclass(frozen=True)
class Problem:
    """One attention: B = TOKENS / length, H = HIDDEN / width, bf16."""

    variant: str
    length: int
    width: int

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return TOKENS // self.length, HIDDEN // self.width, self.length, self.width

    def flops(self) -> float:
        """Multiply-adds of the scores that are kept, in both products."""
        batch, heads, n, width = self.shape
        kept = {"causal": n * (n + 1) / 2, "window": sum(min(i + 1, WINDOW) for i in range(n))}.get(self.variant, n * n)
        return 4.0 * batch * heads * kept * width


@dataclass(frozen=True)
class Setting:
    """A configuration of one executor. `order`: of the grid, "" for the executor's own; `more`: its further knobs."""

    executor: str
    rows: int
    loop: int
    warps: int
    stages: int
    order: str = ""
    more: str = ""


def triton_settings(problem: Problem) -> list[Setting]:
    """Every tile, warps and stages of plain Triton that may be worth a compilation."""
    wide = problem.variant in ("full", "causal")
    grid = product((64, 128), (32, 64, 128), (4, 8), (1, 2, 3, 4) if wide else (2, 3))
    settings = [Setting("triton", *s) for s in grid]
    return settings + [Setting("triton", 256, loop, 8, stages) for loop in (32, 64) for stages in (2, 3)]


def problems() -> list[Problem]:
    lengths = {"full": (1024, 4096, 16384), "causal": (1024, 4096, 16384), "window": (4096,), "softcap": (4096,)}
    return [Problem(v, n, d) for v, all_of in lengths.items() for n in all_of for d in (64, 128, 256)]


def plain(problem: Problem):
    """The attention as a user writes it."""
    import torch

    def attention(q, k, v):
        score = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        if problem.variant == "softcap":
            score = CAP * torch.tanh(score / CAP)
        if problem.variant in ("causal", "window"):
            rows, columns = (torch.arange(n, device=q.device) for n in score.shape[-2:])
            keep = columns <= rows[:, None]
            keep = keep & (rows[:, None] - columns < WINDOW) if problem.variant == "window" else keep
            score = torch.where(keep, score, -math.inf)
        return torch.softmax(score, -1) @ v

    return attention


def triton_launcher(plan, setting: Setting):
    """A callable on tensors by name; `prepared` is the launcher behind it."""
    from onepass.lowering.triton_launch import Launcher
    from onepass.lowering.tuning import Config

    launcher = Launcher(plan, Config(setting.rows, setting.loop, setting.warps, setting.stages))
    call = lambda tensors: launcher(tensors)
    call.prepared = launcher
    return call


def gluon_settings(problem: Problem) -> list[Setting]:
    """Warp-specialised kernels: columns, consumers of 64 rows, ring depths, and the knobs that paid once."""
    tiles = (64,) if problem.width > 128 else (64, 128)
    knobs = ("", "turns", "late", "turns late") if problem.variant in ("full", "causal") else ("", "turns")
    shapes = product((2, 3), tiles, (2, 4) if problem.width <= 64 else (2,), (1, 2), knobs)
    return [
        Setting("gluon", 64 * consumers, tile, 4 * consumers, depth, "table", f"queries={queries} {more}".strip())
        for consumers, tile, depth, queries, more in shapes
        if consumers == 2 or problem.width <= 64
    ]


def gluon_launcher(plan, setting: Setting):
    """A callable on tensors by name that raises where Gluon would be replaced by Triton."""
    from onepass.lowering.gluon_launch import GluonLauncher
    from onepass.lowering.gluon_schedule import Schedule

    queries, *flags = setting.more.split()
    flags = dict.fromkeys(flags, True)
    schedule = Schedule(setting.rows // 64, setting.loop, setting.stages, int(queries.split("=")[1]), **flags)
    launcher = GluonLauncher(plan, schedules={kernel.name: schedule for kernel in plan.kernels})

    def call(tensors):
        result = launcher(tensors)
        if launcher.refusals:
            raise RuntimeError(next(iter(launcher.refusals.values())))
        return result

    call.prepared = launcher
    return call


# An executor is a row: the settings that are worth a compilation for a problem, and how a plan is launched by one.
EXECUTORS = {"triton": (triton_settings, triton_launcher), "gluon": (gluon_settings, gluon_launcher)}

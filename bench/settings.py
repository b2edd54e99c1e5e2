"""What bench/configurations.py measures: the problems, and for each executor its settings and how it launches a plan.

An executor is a row of EXECUTORS. A setting that cannot be launched as asked is an error there, never another kernel.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace
from itertools import product

TOKENS, HIDDEN, WINDOW, CAP = 16384, 2048, 1024, 30.0
SAMPLED = 36  # schedules of warp-specialised kernels that each problem is measured with


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
    """Warp-specialised kernels: what is launched, what would be if nothing was measured, and a sample of others."""
    from onepass.lowering.gluon_schedule import Schedule

    flags = [dict.fromkeys(names, True) for names in ((), ("turns",), ("late",), ("turns", "late"))]
    shapes = product((1, 2, 3), (32, 64, 128), (1, 2, 3, 4), (1, 2), (1, 2, 3), flags)
    every = [_sent(Schedule(*four, residents=n, **more), problem.width) for *four, n, more in shapes]
    held = lambda s: (problem.width + s.tile) // 2 + s.tile // 4 + 16  # totals, scores, weights of a thread
    fits = lambda s: held(s) <= min(s.registers[1], 240) and _bytes(s, problem.width) <= s.shared - 2048
    sample = [s for s in every if fits(s) and s.terminates and (s.residents == 1 or s.consumers == 1)]
    random.Random(problem.width).shuffle(sample)
    sample.sort(key=lambda s: (s.depth < 2) + (s.tile < 64))  # most of the sample is what one would try
    head, tail = sample[: SAMPLED * 2 // 3], sample[SAMPLED * 2 // 3 :]
    random.Random(problem.width).shuffle(tail)
    return [gluon_setting(s) for s in dict.fromkeys(_launched(problem) + head + tail)][:SAMPLED]


def _launched(problem: Problem) -> list:
    from bench.measured import Problem as Row
    from bench.measured import kernel_of
    from onepass.lowering import gluon_choice
    from onepass.lowering.gluon_bind import bind
    from onepass.lowering.gluon_launch import fitting

    batch, heads, length, width = problem.shape
    binding = bind(kernel_of(Row(problem.variant, batch, heads, length, width)))
    return [fitting(binding, {}), gluon_choice.choose(binding, {}, (), None).schedule]


def _bytes(schedule, width: int) -> int:
    from onepass.lowering.gluon_bind import staged

    kept = schedule.consumers * 64 * (width * schedule.queries + (staged(width, schedule.send) if schedule.send else 0))
    return 2 * (kept + 2 * width * schedule.tile * schedule.depth)


def _sent(schedule, width: int):
    """The schedule with results through shared memory, whole or by parts, where they fit beside the rest."""
    found = (replace(schedule, send=send) for send in (256, 64, 0))
    return next((s for s in found if _bytes(s, width) <= s.shared - 2048), schedule)


def gluon_setting(schedule) -> Setting:
    """The row of the table that stands for a schedule."""
    more = f"queries={schedule.queries} residents={schedule.residents}"
    more += "".join(f" {name}" for name in ("turns", "late") if getattr(schedule, name))
    more += f" send={schedule.send}" if schedule.send else ""
    shape = (64 * schedule.consumers, schedule.tile, 4 * schedule.consumers, schedule.depth)
    return Setting("gluon", *shape, "table", more)


def gluon_schedule(rows: int, tile: int, depth: int, more: str):
    """The schedule that a row stands for."""
    from onepass.lowering.gluon_schedule import Schedule

    words = [word.split("=") for word in more.split()]
    numbers = {word[0]: int(word[1]) for word in words if len(word) == 2}
    flags = {name: [name] in words for name in ("turns", "late")}
    return Schedule(rows // 64, tile, depth, **{"send": 0, **numbers}, **flags)


def gluon_launcher(plan, setting: Setting):
    """A callable on tensors by name that raises where Gluon would be replaced by Triton."""
    from onepass.lowering.gluon_launch import GluonLauncher

    schedule = gluon_schedule(setting.rows, setting.loop, setting.stages, setting.more)
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

"""What bench/configurations.py measures: the problems, and for each executor its settings and how it launches a plan.

An executor is a row of EXECUTORS. A setting that cannot be launched as asked is an error there, never another kernel.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, fields, replace
from functools import cache
from itertools import product, zip_longest

TOKENS, HIDDEN, WINDOW, CAP = 16384, 2048, 1024, 30.0
WIDTHS, LENGTHS = (64, 128, 256), (1024, 4096, 16384)
OTHERS = {  # variants that are not measured at every width and length: (widths, lengths)
    "window": (WIDTHS, (4096,)),
    "softcap": (WIDTHS, (4096,)),
    "alibi": ((64, 128), (4096,)),
    "bias": ((64, 128), (4096,)),
    "difference": ((64,), (1024,)),
}
MIXING = ("alibi", "bias", "difference")  # what these compute for one head depends on which it is, or on two
SAMPLED = 8  # warp-specialised kernels of a variant and width that are drawn at random
BEST = 4  # of those measured before, that are measured again
SPILLED = 12  # words of a thread that may go through memory: numbers of an item, not of its loop
ABSENT = {"send": 0}  # what a row means that does not say these: rows older than the setting


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
        return 4.0 * batch * heads * kept * width * (1.5 if self.variant == "difference" else 1)


@dataclass(frozen=True)
class Setting:
    """A configuration of one executor. `order`: of the grid, "" for the executor's own; `more`: further settings."""

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
    settings += [Setting("triton", 256, loop, 8, stages) for loop in (32, 64) for stages in (2, 3)]
    random.Random(0).shuffle(settings)
    return settings


def problems() -> list[Problem]:
    known = {v: (WIDTHS, LENGTHS) for v in ("full", "causal")} | OTHERS
    return [Problem(v, n, d) for v, (widths, lengths) in known.items() for n in lengths for d in widths]


# What a user writes --------------------------------------------------------------------------------------------------


def shapes(problem: Problem) -> dict[str, tuple[int, ...]]:
    """Of the tensors, by name; `difference` has two queries and keys for each value, which is twice as wide."""
    batch, heads, n, width = problem.shape
    found = {name: problem.shape for name in ("q", "k", "v")}
    if problem.variant == "bias":
        found["bias"] = (heads, n, n)
    if problem.variant == "difference":
        found["v"] = (batch, heads // 2, n, 2 * width)
    return found


def plain(problem: Problem):
    """The attention as a user writes it."""
    import torch

    def attended(q, k, v, bias=None):
        score = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        rows, columns = (torch.arange(n, device=q.device) for n in score.shape[-2:])
        if problem.variant == "softcap":
            score = CAP * torch.tanh(score / CAP)
        if problem.variant == "alibi":
            slope = torch.exp2(-torch.arange(1, score.shape[-3] + 1, device=q.device).to(torch.float32))
            score = score + (slope[:, None, None] * (columns - rows[:, None])).to(score.dtype)
        if bias is not None:
            score = score + bias
        if problem.variant in ("causal", "window"):
            keep = columns <= rows[:, None]
            keep = keep & (rows[:, None] - columns < WINDOW) if problem.variant == "window" else keep
            score = torch.where(keep, score, -math.inf)
        return torch.softmax(score, -1) @ v

    def difference(q, k, v):
        (one, two), (left, right) = q.chunk(2, 1), k.chunk(2, 1)
        return attended(one, left, v) - 0.2 * attended(two, right, v)

    def attention(q, k, v):
        return attended(q, k, v)

    def biased(q, k, v, bias):
        return attended(q, k, v, bias)

    return {"difference": difference, "bias": biased}.get(problem.variant, attention)


def slices(problem: Problem) -> list[tuple[slice, slice]]:
    """Parts of batch and heads that are compared with float32: single heads where no head depends on the others."""
    batch, heads, *_ = problem.shape
    ends = [(slice(0, 1), slice(0, 1)), (slice(batch - 1, batch), slice(heads - 1, heads))]
    return [(b, slice(0, heads)) for b, _ in ends] if problem.variant in MIXING else ends


# Executors -----------------------------------------------------------------------------------------------------------


def triton_launcher(plan, setting: Setting):
    """A callable on tensors by name; `prepared` is the launcher behind it."""
    from onepass.lowering.plan.kernel_config import TritonConfig
    from onepass.lowering.triton.launch import Launcher

    launcher = Launcher(plan, TritonConfig(setting.rows, setting.loop, setting.warps, setting.stages))
    call = lambda tensors: launcher(tensors)
    call.prepared = launcher
    return call


def gluon_settings(problem: Problem) -> list[Setting]:
    """Warp-specialised kernels: for each length what is launched, the best of what was measured before, whatever
    differs from these two in one setting, and a sample.

    One list for all lengths of a variant and width: most of these share a kernel, which is compiled once.
    """
    from bench import measured

    alike = [p for p in problems() if (p.variant, p.width) == (problem.variant, problem.width)]
    first = [s for p in alike for s in leading(p, "gluon")]
    near = [c for p in map(row_of, alike) for c in near_to(p, measured.possible(p))]
    drawn = sample(row_of(problem), measured.possible(row_of(problem)))
    random.Random(problem.width).shuffle(near)
    mixed = [gluon_setting(c) for pair in zip_longest(near, drawn) for c in pair if c is not None]
    return list(dict.fromkeys([*first, *mixed]))


@cache
def leading(problem: Problem, executor: str) -> tuple[Setting, ...]:
    """What is launched by default and the fastest that were measured: who may be the best is measured in every run."""
    from bench import measured

    row = row_of(problem)
    if executor != "gluon":
        return ()
    return tuple(gluon_setting(c) for c in (launched(row), *measured.best(row, BEST)))


def near_to(row, space) -> list:
    """Configurations that differ in one setting from what is launched, or from the fastest that was measured."""
    from bench import measured

    configs = [launched(row), *measured.best(row, 1)]
    return [c for config in configs for c in varied(config) if space.allows(measured.point(c))]


def row_of(problem: Problem):
    """The problem as the table names it."""
    from bench.measured import Problem as Row

    batch, heads, length, width = problem.shape
    return Row(problem.variant, batch, heads, length, width)


def launched(row):
    """The settings that a problem has by default."""
    from bench.measured import kernel_of
    from onepass.lowering.gluon.launch import fitting
    from onepass.lowering.hopper.kernel_form import bind

    binding = bind(kernel_of(row))
    return fitting(binding, {}, binding.overlays)


def varied(config) -> list:
    """Configurations that differ in one setting that may be searched."""
    values = [(f.name, value) for f in fields(config) for value in f.metadata["values"]]
    found = [replace(config, **{name: value}) for name, value in values]
    return [c for c in dict.fromkeys(found) if c != config]


def sample(row, space) -> list:
    """At random, half of them of those that are predicted to be within a half of the best."""
    from bench.measured import predicted
    from onepass.tune.kernel_space import configuration

    points = [configuration(p) for p in space]
    random.Random(row.width).shuffle(points)
    times = {c: predicted(row, c) for c in points}
    good = [c for c in points if times[c] < 1.5 * min(times.values())]
    return [c for pair in zip(good[:SAMPLED], points[:SAMPLED]) for c in pair]


def gluon_setting(c) -> Setting:
    """The row of the table that stands for a configuration: `more` holds what no other column does, flags as words."""
    from onepass.lowering.hopper.config import REPORTED_AS
    from onepass.lowering.schedule.setting_values import HOPPER_ONLY

    said = {REPORTED_AS[name]: getattr(c, name) for name in HOPPER_ONLY}
    numbers = " ".join(f"{name}={value}" for name, value in said.items() if not isinstance(value, bool))
    flags = "".join(f" {name}" for name, value in said.items() if value is True)
    return Setting("gluon", c.row_tile, c.loop_tile, c.warps, c.stages, "table", numbers + flags)


def gluon_configuration(rows: int, columns: int, stages: int, more: str):
    """The configuration that a row stands for."""
    from onepass.lowering.hopper.config import REPORTED_AS, HopperConfig

    words = [word.split("=") for word in more.split()]
    said = {word[0]: int(word[1]) if len(word) == 2 else True for word in words}
    named = {name: said[word] for name, word in REPORTED_AS.items() if word in said}
    return HopperConfig(rows // 64, columns, stages, **(ABSENT | named))


def gluon_launcher(plan, setting: Setting):
    """A callable on tensors by name that raises where Gluon would be replaced by Triton."""
    from onepass.lowering.gluon.launch import GluonLauncher

    config = gluon_configuration(setting.rows, setting.loop, setting.stages, setting.more)
    launcher = GluonLauncher(plan, hopper_configs={kernel.name: config for kernel in plan.kernels})

    def call(tensors):
        result = launcher(tensors)
        if launcher.refusals:
            raise RuntimeError(next(iter(launcher.refusals.values())))
        return result

    call.prepared = launcher
    return call


# An executor is a row: the settings that are worth a compilation for a problem, and how a plan is launched by one.
EXECUTORS = {"triton": (triton_settings, triton_launcher), "gluon": (gluon_settings, gluon_launcher)}

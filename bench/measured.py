"""The measured table of configurations as Python sees it: problems, their kernels, points of a space, and trials.

A row counts as measured when its result was right and timed, whether or not its kernel spilled; what failed for a
reason of the script that measured is no row at all. Read by the tests, by fit_prediction.py and replay.py.
"""

from __future__ import annotations

import csv
import sys
from dataclasses import dataclass
from functools import cache
from math import inf
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.settings import CAP, WINDOW, gluon_configuration
from onepass.egraph.terms.ops import cast, exp2, iota, le, logical_and, lt, sum_over, tanh, where
from onepass.egraph.terms.term import Dim, Tensor
from onepass.lowering.hopper.config import HopperConfig
from onepass.lowering.plan.kernel_config import TritonConfig
from onepass.lowering.planning.planner import build_plan
from onepass.lowering.schedule.kernel_time import Config, seconds
from onepass.lowering.schedule.setting_values import NAMES
from onepass.tune.bayesian_search import Trial
from onepass.tune.kernel_space import needs, point, space_of
from onepass.tune.search_space import Constraint, Parameter, Space
from tests.support.attention_terms import loaded, one_pass, stored

TABLE = Path(__file__).parent / "results" / "configurations_h200.csv"
DEFECT = "n_regs"  # in the note of a row that failed because another row of its process had


@dataclass(frozen=True)
class Problem:
    """One attention of the table."""

    variant: str
    batch: int
    heads: int
    length: int
    width: int

    def __str__(self) -> str:
        return f"{self.variant} D{self.width} S{self.length}"


@cache
def table(path: Path = TABLE) -> dict[Problem, dict[Config, dict]]:
    """By problem and configuration, the rows that say something about the configuration."""
    found: dict[Problem, dict[Config, dict]] = {}
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            if DEFECT not in row["note"]:
                sizes = (int(row[n]) for n in ("batch", "heads", "length", "width"))
                found.setdefault(Problem(row["variant"], *sizes), {})[configuration(row)] = row
    return dict(sorted(found.items(), key=lambda item: str(item[0])))


def configuration(row: dict) -> Config:
    rows, loop, warps, stages = (int(row[n]) for n in ("rows", "loop", "warps", "stages"))
    if row["executor"] == "gluon":
        return gluon_configuration(rows, loop, stages, row["more"])
    return TritonConfig(rows, loop, warps, stages)


@cache
def kernel_of(problem: Problem):
    """The kernel that the plan of this problem has, without the search for it."""
    lead = (Dim("b", problem.batch), Dim("h", problem.heads))
    i, d = Dim("i", problem.length), Dim("d", problem.width)
    term, order = FORMS.get(problem.variant, _attention)(problem, lead, i, d)
    output = Tensor("out", "bfloat16", tuple(x.size for x in order))
    return build_plan(stored(term, "bfloat16"), output, order).kernels[0]


def _attention(problem: Problem, lead, i: Dim, d: Dim):
    """(term, dims of the result)"""
    j, e = Dim("j", problem.length), Dim("e", problem.width)
    tensor = lambda name, *dims: loaded(Tensor(name, "bfloat16", tuple(x.size for x in dims)), *dims)
    scale = problem.width**-0.5 * FACTORS.get(problem.variant, 1.0)
    scores = sum_over(d, tensor("q", *lead, i, d) * tensor("k", *lead, j, d)) * scale
    scores = SCORES.get(problem.variant, lambda scores, *_: scores)(scores, lead[-1], i, j)
    return one_pass(j, scores, tensor("v", *lead, j, e)), (*lead, i, e)


def _difference(problem: Problem, lead, i: Dim, d: Dim):
    """Two kinds of weights for the same values."""
    b, h = lead[0], Dim("h", problem.heads // 2)
    j, e = Dim("j", problem.length), Dim("e", 2 * problem.width)
    make = lambda name, heads, n, w: Tensor(name, "bfloat16", (problem.batch, heads, n.size, w.size))
    wide = lambda name, n, first: loaded(make(name, problem.heads, n, d), b, iota(h) + first, n, d)
    scores = [sum_over(d, wide("q", i, at) * wide("k", j, at)) * problem.width**-0.5 for at in (0, h.size)]
    values = loaded(make("v", h.size, j, e), b, h, j, e)
    one, two = (one_pass(j, s, values) for s in scores)
    return one - two * 0.2, (b, h, i, e)


FORMS = {"difference": _difference}
FACTORS = {"softcap": 1 / CAP}  # of scores, beside their scale
SCORES = {  # of scores, the dim of heads, rows and columns
    "softcap": lambda scores, h, i, j: tanh(scores) * CAP,
    "causal": lambda scores, h, i, j: where(le(iota(j), iota(i)), scores, -inf),
    "window": lambda scores, h, i, j: where(
        logical_and(le(iota(j), iota(i)), lt(iota(i) - iota(j), WINDOW)), scores, -inf
    ),
    "alibi": lambda scores, h, i, j: (
        scores + exp2(-cast(iota(h) + 1, "float32")) * cast(iota(j) - iota(i), "float32")
    ),
    "bias": lambda scores, h, i, j: (
        scores + loaded(Tensor("bias", "bfloat16", (h.size, i.size, j.size)), h, i, j)
    ),
}  # fmt: skip


@cache
def predicted(problem: Problem, chosen: Config) -> float:
    """Seconds; infinite where the known rules say that the configuration cannot run."""
    return seconds(kernel_of(problem), chosen)


def best(problem: Problem, count: int) -> list[HopperConfig]:
    """The fastest warp-specialised kernels that were measured."""
    found = [c for c, row in table().get(problem, {}).items() if row["ms"] and isinstance(c, HopperConfig)]
    return sorted(found, key=lambda c: float(table()[problem][c]["ms"]))[:count]


def possible(problem: Problem) -> Space:
    """Every warp-specialised kernel that known rules allow."""
    return space_of((kernel_of(problem),), {}, ("gluon",))


def trials(problem: Problem, strict: bool = False) -> dict[tuple, Trial]:
    """What a trial of each configuration gives; with `strict`, a kernel that spills is not accepted."""
    found = {}
    for chosen, row in table()[problem].items():
        accepted = row["status"] == "ok" or (row["status"] == "spill" and not strict)
        time = {"time": float(row["ms"])} if accepted else {}
        found[point(chosen)] = Trial(point(chosen), "ok" if accepted else row["status"], **time)
    return found


@cache
def needed(problem: Problem, chosen: Config) -> tuple[float, ...]:
    """What is known of a configuration beside its time: registers of a thread, those that it lacks, shared memory."""
    return needs((kernel_of(problem),), chosen)


@cache
def space(problem: Problem, strict: bool = False) -> Space:
    """The configurations in the table that known rules allow; with `strict`, those that would spill are not."""
    allowed = lambda c: predicted(problem, c) < inf and not (strict and needed(problem, c)[1])
    here = {point(c) for c in table()[problem] if allowed(c)}
    columns = [tuple(dict.fromkeys(column)) for column in zip(*sorted(here))]
    parameters = tuple(Parameter(name, column) for name, column in zip(NAMES, columns))
    return Space(parameters, tuple(_beginning(here, count + 1) for count in range(len(NAMES))))


def _beginning(points: set[tuple], count: int) -> Constraint:
    """That the first `count` settings are those of a point: a branch of the tree ends where no point goes on."""
    known = {p[:count] for p in points}
    return Constraint(NAMES[:count], lambda *values: values in known)

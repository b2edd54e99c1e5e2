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

from bench.settings import CAP, WINDOW
from onepass.egraph.ops import iota, le, logical_and, lt, sum_over, tanh, where
from onepass.egraph.term import Dim, Tensor
from onepass.lowering.build import build_plan
from onepass.lowering.schedule.predict import Configuration, seconds
from onepass.space import Constraint, Parameter, Space
from onepass.tuner import Trial
from tests.attention_terms import loaded, one_pass, stored

TABLE = Path(__file__).parent / "results" / "configurations_h200.csv"
NAMES = ("executor", "rows", "columns", "warps", "stages", "queries", "turns", "late", "residents", "send")
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
def table(path: Path = TABLE) -> dict[Problem, dict[Configuration, dict]]:
    """By problem and configuration, the rows that say something about the configuration."""
    found: dict[Problem, dict[Configuration, dict]] = {}
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            if DEFECT not in row["note"]:
                sizes = (int(row[n]) for n in ("batch", "heads", "length", "width"))
                found.setdefault(Problem(row["variant"], *sizes), {})[configuration(row)] = row
    return dict(sorted(found.items(), key=lambda item: str(item[0])))


def configuration(row: dict) -> Configuration:
    numbers = (int(row[n]) for n in ("rows", "loop", "warps", "stages"))
    executor = {"triton": "ptr"}.get(row["executor"], row["executor"])
    words = [word.split("=") for word in row["more"].split()]
    more = {word[0]: int(word[1]) for word in words if len(word) == 2}
    if executor == "gluon":
        more = {"send": 0, **more}
    return Configuration(executor, *numbers, **more, turns=["turns"] in words, late=["late"] in words)


@cache
def kernel_of(problem: Problem):
    """The kernel that the plan of this problem has, without the search for it."""
    lead = (Dim("b", problem.batch), Dim("h", problem.heads))
    i, j = Dim("i", problem.length), Dim("j", problem.length)
    d, e = Dim("d", problem.width), Dim("e", problem.width)
    tensor = lambda name, *dims: loaded(Tensor(name, "bfloat16", tuple(x.size for x in dims)), *dims)
    scores = sum_over(d, tensor("q", *lead, i, d) * tensor("k", *lead, j, d)) * problem.width**-0.5
    if problem.variant == "softcap":
        scores = tanh(scores / CAP) * CAP
    if problem.variant in ("causal", "window"):
        kept = le(iota(j), iota(i))
        kept = logical_and(kept, lt(iota(i) - iota(j), WINDOW)) if problem.variant == "window" else kept
        scores = where(kept, scores, -inf)
    term = stored(one_pass(j, scores, tensor("v", *lead, j, e)), "bfloat16")
    output = Tensor("out", "bfloat16", (problem.batch, problem.heads, problem.length, problem.width))
    return build_plan(term, output, (*lead, i, e)).kernels[0]


@cache
def predicted(problem: Problem, chosen: Configuration) -> float:
    """Seconds; infinite where the known rules say that the configuration cannot run."""
    return seconds(kernel_of(problem), chosen)


def point(chosen: Configuration) -> tuple:
    return tuple(getattr(chosen, name) for name in NAMES)


def trials(problem: Problem, strict: bool = False) -> dict[tuple, Trial]:
    """What a trial of each configuration gives; with `strict`, a kernel that spills is not accepted."""
    found = {}
    for chosen, row in table()[problem].items():
        accepted = row["status"] == "ok" or (row["status"] == "spill" and not strict)
        found[point(chosen)] = (
            Trial(point(chosen), "ok", float(row["ms"])) if accepted else Trial(point(chosen), row["status"])
        )
    return found


def space(problem: Problem) -> Space:
    """The configurations in the table that known rules allow."""
    here = {point(c) for c in table()[problem] if predicted(problem, c) < inf}
    columns = [tuple(dict.fromkeys(column)) for column in zip(*sorted(here))]
    parameters = tuple(Parameter(name, column) for name, column in zip(NAMES, columns))
    return Space(parameters, (Constraint(NAMES, lambda *values: values in here),))

"""Tunes the kernels of a function's regions on the GPU at hand, and keeps the winners where the operator finds them.

A trial is one setting of one executor: it runs in a process of its own, its results are compared with the tiled
executor's before anything is timed, and a crash or a hang is one infeasible trial. Used by `python -m onepass tune`.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache as remembered
from itertools import product
from math import inf
from pathlib import Path

import torch

from . import cache, executors, fused, operator, rivals
from .agreement import mismatch
from .runner import call_of
from .space import Constraint, Parameter, Space
from .trials import Outcome
from .tuner import History, Isolated, Trial, checked, tune

NAMES = ("executor", "rows", "columns", "warps", "stages", "queries", "turns", "late")
TRITON = product(("ptr",), (64, 128), (32, 64, 128), (4, 8), (1, 2, 3, 4), (1,), (False,), (False,))
GLUON = product(("gluon",), (64, 128, 192), (64, 128), (4, 8, 12), (1, 2, 3, 4), (1, 2), (False, True), (False, True))
POINTS = (*TRITON, *GLUON)
SECONDS, ROUNDS = 120.0, 10  # of a trial; timed launches


@dataclass(frozen=True)
class Asked:
    """One region and one call of it."""

    text: str
    tensors: tuple[torch.Tensor, ...]
    numbers: tuple[int, ...]

    @property
    def found(self) -> fused.Fused:
        return fused.read(self.text)

    @property
    def call(self):
        return call_of(self.found, self.tensors, self.numbers)

    @property
    def size(self) -> str:
        return rivals.size_class(self.tensors[0].device, self.call.sizes)


def known_rules(plan, sizes: dict, gluon: bool) -> Callable[..., bool]:
    """Whether a point may be tried: what the form allows, and what shared memory holds."""

    def allowed(*point) -> bool:
        executor, rows, _, warps, _, _, turns, _ = point
        if executor == "gluon" and (not gluon or warps != rows // 16 or (turns and rows == 64)):
            return False
        return predicted(plan, sizes, point) < inf

    return allowed


def predicted(plan, sizes: dict, point: tuple) -> float:
    """Seconds of all kernels; 1 where nothing is predicted, infinite for what cannot fit."""
    from .lowering.plan import NotPlannable
    from .lowering.schedule.predict import Configuration, seconds

    try:
        return sum(seconds(kernel, Configuration(*point), sizes) for kernel in plan.kernels)
    except NotPlannable:
        return 1.0


def space_of(plan, sizes: dict, gluon: bool) -> Space:
    allowed = known_rules(plan, sizes, gluon)
    every = {p for p in POINTS if allowed(*p)}
    columns = zip(NAMES, zip(*POINTS))
    parameters = tuple(Parameter(name, tuple(dict.fromkeys(values))) for name, values in columns)
    return Space(parameters, (Constraint(NAMES, lambda *point: point in every),))


def tune_call(asked: Asked, trial: Callable[[tuple], Trial], budget: int, gluon: bool, seed: int = 0) -> History:
    """Tries settings for one call; the fastest right one is kept in the region's entry of the cache."""
    plan, sizes = asked.found.plan, asked.call.sizes
    prior = lambda point: predicted(plan, sizes, point)
    history = tune(space_of(plan, sizes, gluon), trial, budget, prior, seed)
    if history.best is not None:
        entry = cache.read(asked.found.key) or {}
        cache.update(asked.found.key, tuned={**entry.get("tuned", {}), asked.size: list(history.best.point)})
    return history


# A trial, in its own process ------------------------------------------------------------------------------------------


def attempt(task: tuple) -> Outcome:
    """(file of the call, setting): compared with the tiled executor, then timed."""
    path, point = task
    asked, expected = _call_of(path)
    with torch.no_grad():
        run = executors.tuned(point)(asked.found, asked.tensors, asked.call)
        pairs = lambda results: zip(results, expected, strict=True)
        agrees = lambda results: not any(mismatch(r, e, asked.tensors) for r, e in pairs(results))
        return checked(lambda _: run(asked.tensors), agrees, lambda _: _seconds(run, asked.tensors))(point)


@remembered
def _call_of(path: str) -> tuple[Asked, list[torch.Tensor]]:
    asked = Asked(**torch.load(path, weights_only=True))
    with torch.no_grad():
        return asked, executors.tiled(asked.found, asked.tensors, asked.call)(asked.tensors)


def _seconds(run: Callable, tensors) -> float:
    run(tensors)
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(ROUNDS)]
    for start, end in events:
        start.record()
        run(tensors)
        end.record()
    torch.cuda.synchronize()
    return statistics.median(start.elapsed_time(end) for start, end in events) / 1e3


@contextmanager
def isolated(asked: Asked):
    """Trials of a call in a worker process."""
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "call.pt")
        torch.save({"text": asked.text, "tensors": asked.tensors, "numbers": asked.numbers}, path)
        worker = Isolated(attempt, SECONDS)
        try:
            yield lambda point: _named(worker((path, point)), point)
        finally:
            worker.close()


def _named(trial: Trial, point: tuple) -> Trial:
    return Trial(point, trial.status, trial.time)


# A function -----------------------------------------------------------------------------------------------------------


def calls_of(function, inputs=(), keywords=None) -> list[Asked]:
    """Runs the compiled function once, without gradients: a call of every region that it has."""
    from .backend import onepass_backend

    torch._dynamo.reset()
    with operator.recorded() as seen, torch.no_grad():
        torch.compile(function, backend=onepass_backend, dynamic=False)(*inputs, **(keywords or {}))
    return [Asked(text, tensors, numbers) for text, (tensors, numbers) in seen.items()]


def tune_function(function, inputs=(), keywords=None, budget: int = 30):
    """Tunes each region of a function on the GPU; yields (call, history)."""
    from .lowering.gluon_launch import refusal

    for asked in calls_of(function, inputs, keywords):
        gluon = refusal(asked.found.plan, asked.tensors[0].device) is None
        with isolated(asked) as trial:
            yield asked, tune_call(asked, trial, budget, gluon)

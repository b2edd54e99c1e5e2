"""Tunes the kernels of a function's regions on the GPU at hand, and keeps the winners where the operator finds them.

A trial is one setting of one executor: it runs in a process of its own, its results are compared with the tiled
executor's before anything is timed, and a crash or a hang is one infeasible trial.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache as remembered
from pathlib import Path

import torch

from ..compiler import compiled_region
from ..lowering.executors import GLUON, TRITON
from ..lowering.schedule.setting_values import NAMES
from ..runtime import executors, library_choice, operator
from ..runtime.compare_results import mismatch
from ..runtime.measurements import Measured, keep
from ..runtime.region_call import RegionCall, call_of
from .bayesian_search import History, Isolated, Trial, checked, tune
from .kernel_space import configuration, needs, predicted, space_of
from .trial_process import Outcome

SECONDS, ROUNDS = 120.0, 10  # of a trial; timed launches


@dataclass(frozen=True)
class Asked:
    """One region and one call of it."""

    text: str
    tensors: tuple[torch.Tensor, ...]
    numbers: tuple[int, ...]

    @property
    def found(self) -> compiled_region.Fused:
        return compiled_region.read(self.text)

    @property
    def call(self) -> RegionCall:
        return call_of(self.found, self.tensors, self.numbers)

    @property
    def size(self) -> str:
        return library_choice.size_class(self.tensors[0].device, self.call.sizes)


def tune_call(asked: Asked, trial: Callable[[tuple], Trial], budget: int, gluon: bool, seed: int = 0) -> History:
    """Tries settings for one call; the fastest right one is kept in the region's entry of the cache."""
    kernels, sizes = asked.found.plan.kernels, asked.call.sizes
    space = space_of(kernels, sizes, (TRITON.name, GLUON.name) if gluon else (TRITON.name,))
    prior = lambda point: predicted(kernels, configuration(point), sizes)
    history = tune(space, trial, budget, prior, seed, lambda point: needs(kernels, configuration(point)))
    if history.best is not None:
        settings = dict(zip(NAMES, history.best.point))
        keep(asked.found.key, tuned={**Measured.read(asked.found.key).tuned, asked.size: settings})
    return history


# A trial, in its own process ------------------------------------------------------------------------------------------


def attempt(task: tuple) -> Outcome:
    """(file of the call, setting): compared with the tiled executor, then timed."""
    path, point = task
    asked, expected = _call_of(path)
    with torch.no_grad():
        run = executors.tuned(dict(zip(NAMES, point)))(asked.found, asked.tensors, asked.call)
        pairs = lambda results: zip(results, expected, strict=True)
        agrees = lambda results: not any(mismatch(r, e, asked.tensors) for r, e in pairs(results))
        return checked(lambda _: run(asked.tensors), agrees, lambda _: _seconds(run, asked.tensors))(point)


@remembered
def _call_of(path: str) -> tuple[Asked, list[torch.Tensor]]:
    asked = Asked(**torch.load(path, weights_only=True))
    with torch.no_grad():
        return asked, executors.EXECUTORS["tiled"](asked.found, asked.tensors, asked.call)(asked.tensors)


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
def isolated(asked: Asked) -> Iterator[Callable[[tuple], Trial]]:
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


def calls_of(function: Callable, inputs: Sequence = (), keywords: Mapping | None = None) -> list[Asked]:
    """Runs the compiled function once, without gradients: a call of every region that it has."""
    from ..api.backend import onepass_backend

    torch._dynamo.reset()
    with operator.recorded() as seen, torch.no_grad():
        torch.compile(function, backend=onepass_backend, dynamic=False)(*inputs, **(keywords or {}))
    return [Asked(text, tensors, numbers) for text, (tensors, numbers) in seen.items()]


def tune_function(
    function: Callable, inputs: Sequence = (), keywords: Mapping | None = None, budget: int = 30
) -> Iterator[tuple[Asked, History]]:
    """Tunes each region of a function on the GPU; yields (call, history)."""
    for asked in calls_of(function, inputs, keywords):
        gluon = GLUON.refusal(asked.found.plan, asked.tensors[0].device) is None
        with isolated(asked) as trial:
            yield asked, tune_call(asked, trial, budget, gluon)

"""Looks for the fastest configuration with few trials: Bayesian search over a space, a prior, and learned feasibility.

A trial that fails, is wrong or never ends is infeasible, never slow. What is expected of a point is its improvement, by
a Gaussian process on log time, times its chance to be feasible, by a random forest, times the prior's weight, which
fades as trials come in. Times come from a callable, so that tables can be replayed. Needs the extra `tune`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from math import inf, log
from pathlib import Path
from typing import Any

import numpy as np

from .search_space import Space
from .trial_process import Outcome, Worker

FIRST = 5  # trials drawn by the prior alone
POINTS_DRAWN, MAX_POINTS_RANKED = 2000, 6000  # points considered where the space is larger than this
LENGTHS = (0.7, 2.0, 6.0)  # of the distances over which times may be alike; the likeliest is used
FADING = 4.0  # the prior counts as much as this many trials
SAFE = (0.4, 0.9)  # a point less likely to run than a number drawn from here is not tried while another is
SPREAD = 0.15  # what the prior's logarithm is off by, as a standard deviation


@dataclass(frozen=True)
class Trial:
    """One configuration's end: "ok" with seconds (or any unit of time), else why it is infeasible."""

    point: tuple
    status: str
    time: float = inf


@dataclass
class History:
    """Trials in order."""

    trials: list[Trial] = field(default_factory=list)

    @property
    def best(self) -> Trial | None:
        right = [t for t in self.trials if t.status == "ok"]
        return min(right, key=lambda t: t.time, default=None)

    def best_after(self, count: int) -> float:
        return min((t.time for t in self.trials[:count] if t.status == "ok"), default=inf)

    @property
    def infeasible(self) -> float:
        """The share of trials that were."""
        return sum(t.status != "ok" for t in self.trials) / max(1, len(self.trials))


def tune(
    space: Space,
    trial: Callable[[tuple], Trial],
    budget: int,
    prior: Callable[[tuple], float] | None = None,
    seed: int = 0,
    facts: Callable[[tuple], tuple[float, ...]] | None = None,
) -> History:
    """Tries `budget` points, none twice. prior: a predicted time of a point; infinite where it cannot run. facts: what
    else is known of a point before it is tried (registers, bytes); whether it can run is learned from them too.
    """
    search = _BayesianSearch(space, prior, np.random.default_rng(seed), facts)
    for _ in range(min(budget, len(space))):
        point = search.next()
        if point is None:
            break
        search.add(trial(point))
    return search.history


class _BayesianSearch:
    def __init__(self, space: Space, prior, generator: np.random.Generator, facts=None):
        self.space, self.prior, self.generator, self.facts = space, prior, generator, facts
        self.known: dict[tuple, tuple[float, ...]] = {}
        self.history = History()
        self.seen: set[tuple] = set()
        self.predicted: dict[tuple, float] = {}
        self.every = list(space) if len(space) <= MAX_POINTS_RANKED else None
        self.rows: dict[tuple, np.ndarray] = {}
        self.forest: Any = None  # a RandomForestClassifier, once it is needed
        self.learned = 0
        self.chances: dict[tuple, float] = {}

    def add(self, trial: Trial) -> None:
        self.history.trials.append(trial)
        self.seen.add(trial.point)

    def candidates(self) -> list[tuple]:
        points = self.every
        if points is None:
            points = [self.space.draw(self.generator) for _ in range(POINTS_DRAWN)]
            right = sorted((t for t in self.history.trials if t.status == "ok"), key=lambda t: t.time)
            points += [n for t in right[:3] for n in self.space.neighbours(t.point)]
        points = [p for p in dict.fromkeys(points) if p not in self.seen]
        return [p for p in points if self.log_prior(p) < inf] or points

    def log_prior(self, point: tuple) -> float:
        if self.prior is None:
            return 0.0
        if point not in self.predicted:
            time = self.prior(point)
            self.predicted[point] = log(time) if 0 < time < inf else inf
        return self.predicted[point]

    def next(self) -> tuple | None:
        points = self.candidates()
        if not points:
            return None
        prior = np.array([self.log_prior(p) for p in points])
        prior = np.where(np.isfinite(prior), prior, 0.0)
        trials = self.history.trials
        weight = -(prior - prior.min()) / SPREAD  # log of the prior's belief that the point is the best
        right = [t for t in trials if t.status == "ok"]
        if len(trials) < FIRST or len(right) < 2:
            return points[int(np.argmax(weight + self.generator.gumbel(size=len(points))))]
        score = self.improvement(points, prior, right) * self.feasible(points, trials)
        score = np.log(np.maximum(score, 1e-300)) + weight * FADING / (FADING + len(trials))
        return points[int(np.argmax(score + 1e-9 * self.generator.random(len(points))))]

    def features(self, points: list[tuple]) -> np.ndarray:
        fresh = [p for p in points if p not in self.rows]
        self.rows.update(zip(fresh, self.space.features(fresh)))
        return np.array([self.rows[p] for p in points])

    def all_facts(self, points: list[tuple]) -> np.ndarray:
        if self.facts is None:
            return self.features(points)
        for p in points:
            if p not in self.known:
                self.known[p] = tuple(self.facts(p))
        return np.hstack([self.features(points), np.array([self.known[p] for p in points])])

    def improvement(self, points: list[tuple], prior: np.ndarray, right: list[Trial]) -> np.ndarray:
        """Expected improvement of log time over the best; the process models what the prior is off by."""
        from scipy.stats import norm
        from sklearn.gaussian_process import GaussianProcessRegressor
        from sklearn.gaussian_process.kernels import Matern, WhiteKernel

        known = np.array([self.log_prior(t.point) for t in right])
        known = np.where(np.isfinite(known), known, 0.0)
        times = np.array([log(t.time) for t in right])
        offset = np.median(times - known)
        rest = times - known - offset
        seen, scale = self.features([t.point for t in right]), max(rest.var(), 1e-4)
        fits = [
            GaussianProcessRegressor(scale * Matern(length, nu=2.5) + WhiteKernel(1e-4), optimizer=None).fit(seen, rest)
            for length in LENGTHS
        ]
        model = max(fits, key=lambda fit: fit.log_marginal_likelihood_value_)
        mean, deviation = model.predict(self.features(points), return_std=True)
        mean = mean + prior + offset
        gain = times.min() - mean
        ratio = gain / np.maximum(deviation, 1e-9)
        return gain * norm.cdf(ratio) + deviation * norm.pdf(ratio)

    def feasible(self, points: list[tuple], trials: list[Trial]) -> np.ndarray:
        """The chance that each point can run; points below a threshold, drawn anew each time, are out."""
        from sklearn.ensemble import RandomForestClassifier

        ends = [t.status == "ok" for t in trials]
        if all(ends):
            return np.ones(len(points))
        if self.forest is None or not all(ends[self.learned :]):
            self.forest = RandomForestClassifier(30, max_features=0.75, class_weight="balanced", random_state=0)
            self.forest.fit(self.all_facts([t.point for t in trials]), ends)
            self.learned, self.chances = len(trials), {}
        if fresh := [p for p in points if p not in self.chances]:
            chances = self.forest.predict_proba(self.all_facts(fresh))[:, list(self.forest.classes_).index(True)]
            self.chances.update(zip(fresh, chances))
        chance = np.array([self.chances[p] for p in points])
        least = min(self.generator.uniform(*SAFE), chance.max())
        return np.where(chance >= least, chance, 0.0)


# Trials --------------------------------------------------------------------------------------------------------------


def checked(run: Callable, agrees: Callable, measure: Callable) -> Callable[[tuple], Outcome]:
    """A trial's body: run(point), then agrees(result), the oracle, and only then measure(point) in seconds."""

    def body(point: tuple) -> Outcome:
        if not agrees(run(point)):
            return Outcome("wrong")
        return Outcome("ok", measure(point))

    return body


class Isolated:
    """Trials of an importable body in a process of their own; a crash or a time-out is one infeasible trial."""

    def __init__(self, body: Callable[[tuple], Outcome], seconds: float):
        self.worker = Worker(body, seconds)

    def __call__(self, point: tuple) -> Trial:
        end = self.worker(point)
        inner = end.value if end.status == "ok" else end
        return Trial(point, inner.status, float(inner.value) if inner.status == "ok" else inf)

    def close(self) -> None:
        self.worker.close()


class Cached:
    """Trials kept in a file of JSON lines under a key: the same point is never measured twice."""

    def __init__(self, trial: Callable[[tuple], Trial], path: Path, key: str):
        self.trial, self.path, self.key = trial, path, key
        lines = path.read_text().splitlines() if path.exists() else []
        rows = [json.loads(line) for line in lines if line.strip()]
        self.known = {_frozen(r["point"]): r for r in rows if r["key"] == key}

    def __call__(self, point: tuple) -> Trial:
        if point in self.known:
            row = self.known[point]
            return Trial(point, row["status"], inf if row["time"] is None else row["time"])
        found = self.trial(point)
        row = {"key": self.key, **asdict(found), "time": found.time if found.time < inf else None}
        self.known[point] = row
        with self.path.open("a") as file:
            file.write(json.dumps(row) + "\n")
        return found


def _frozen(value):
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


def replayed(table: dict[tuple, Trial]) -> Callable[[tuple], Trial]:
    """A trial that looks up what was measured once; a point that was not is infeasible."""
    return lambda point: table.get(point, Trial(point, "not measured"))


def at_random(space: Space, trial: Callable[[tuple], Trial], budget: int, seed: int = 0) -> History:
    """The same number of trials without looking: what a tuner is compared with."""
    points = list(space)
    order = np.random.default_rng(seed).permutation(len(points))[:budget]
    return History([trial(points[k]) for k in order])

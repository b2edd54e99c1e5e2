"""Spaces hold what constraints allow, exactly; a tuner on replayed tables beats chance."""

import csv
from collections import Counter
from itertools import permutations, product
from math import inf
from statistics import median

import numpy as np
import pytest

from bench.measured import needed, predicted, space, table, trials
from bench.replay import COUNTS, histories
from bench.replay import OUT as REPLAY
from bench.settings import SPILLED
from onepass.lowering.schedule.kernel_time import executor_of
from onepass.tune.bayesian_search import Cached, Trial, at_random, checked, replayed, tune
from onepass.tune.kernel_space import configuration
from onepass.tune.search_space import Constraint, Parameter, Space

# Spaces --------------------------------------------------------------------------------------------------------------

SPACE = Space(
    (
        Parameter("rows", (64, 128, 192, 256)),
        Parameter("order", tuple(permutations("bhi"))),
        Parameter("warps", (4, 8, 12)),
        Parameter("persistent", (False, True)),
    ),
    (Constraint(("rows", "warps"), lambda rows, warps: rows % (16 * warps) == 0),),
)


def test_a_space_is_what_its_constraints_allow():
    allowed = [p for p in product(*(p.values for p in SPACE.parameters)) if p[0] % (16 * p[2]) == 0]
    assert sorted(map(str, SPACE)) == sorted(map(str, allowed)) and len(SPACE) == len(allowed)
    assert [group for group, _ in SPACE.trees] == [(0, 2), (1,), (3,)]


def test_draws_are_uniform_and_allowed():
    generator = np.random.default_rng(0)
    counts = Counter(SPACE.draw(generator) for _ in range(100 * len(SPACE)))
    assert set(counts) == set(SPACE)
    assert 50 < min(counts.values()) and max(counts.values()) < 160


def test_neighbours_differ_in_one_parameter_and_are_allowed():
    point = (128, ("b", "h", "i"), 4, False)
    found = SPACE.neighbours(point)
    assert set(found) == {p for p in SPACE if sum(a != b for a, b in zip(p, point)) == 1}


def test_permutations_are_as_far_apart_as_their_pairs():
    order = SPACE.parameters[1]
    distance = lambda a, b: sum(x != y for x, y in zip(order.features(a), order.features(b)))
    assert distance(("b", "h", "i"), ("h", "b", "i")) == 1
    assert distance(("b", "h", "i"), ("i", "h", "b")) == 3


def test_a_constraint_on_nothing_is_refused():
    with pytest.raises(ValueError, match="'depth'"):
        Space(SPACE.parameters, (Constraint(("depth",), bool),))


# The measured table --------------------------------------------------------------------------------------------------

PROBLEMS = {str(problem): problem for problem in table()}
SEEDS = 5  # here; bench/replay.py has twenty, and every problem
HELD = ("full D64 S16384", "full D128 S4096")
STRICT = ("causal D256 S4096", "full D128 S4096")


@pytest.mark.parametrize("name", PROBLEMS)
def test_known_rules_are_exact(name):
    """What the rules refuse did not fit, compile or end on the GPU, and all that did not is refused."""
    for chosen, row in table()[PROBLEMS[name]].items():
        failed = row["status"] in ("out of resource", "compile error", "time-out")
        assert (predicted(PROBLEMS[name], chosen) == inf) == failed, chosen


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", HELD)
def test_thirty_trials_are_enough(name):
    problem = PROBLEMS[name]
    best = min(t.time for t in trials(problem).values())
    tuned, drawn = histories(problem, False, SEEDS)
    for count in COUNTS:
        found, chance = (median(h.best_after(count) for h in some) for some in (tuned, drawn))
        assert found < chance or found == chance == best, count
    assert median(h.best_after(30) for h in tuned) <= 1.05 * best
    assert all(len({t.point for t in h.trials}) == len(h.trials) == 30 for h in tuned)


def test_every_problem_was_replayed_with_twenty_seeds():
    """The committed replay is of this table, and medians hold what is asked of a tuner."""
    with REPLAY.open(newline="") as file:
        rows = {(row["problem"], int(row["strict"])): row for row in csv.DictReader(file)}
    assert set(rows) == {(name, strict) for name in PROBLEMS for strict in (0, 1)}
    for (name, strict), row in rows.items():
        ends = trials(PROBLEMS[name], bool(strict)).values()
        best = min(t.time for t in ends)
        assert float(row["best_ms"]) == best and int(row["feasible"]) == sum(t.status == "ok" for t in ends), name
        assert int(row["points"]) == len(space(PROBLEMS[name], bool(strict))) and int(row["seeds"]) >= 20, name
        assert float(row["tuned_30"]) <= 1.05 and float(row["infeasible"]) < 0.15, row
        for count in COUNTS:
            tuned, drawn = float(row[f"tuned_{count}"]), float(row[f"random_{count}"])
            assert tuned < drawn or tuned == drawn == 1.0, (row, count)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", STRICT)
def test_few_trials_spill_where_spills_are_refused(name):
    """What a thread would lack is known before; without that, it is learned from registers and shared memory."""
    problem = PROBLEMS[name]
    tuned, _ = histories(problem, True, SEEDS)
    assert median(h.infeasible for h in tuned) < 0.15
    points, trial = space(problem), replayed(trials(problem, strict=True))
    assert sum(t.status == "spill" for t in map(trial, points)) > 0.05 * len(points)
    facts = lambda point: needed(problem, configuration(point))
    few = len(points) // 3
    learned = [tune(points, trial, few, None, seed, facts).infeasible for seed in range(SEEDS)]
    drawn = [at_random(points, trial, few, seed).infeasible for seed in range(20)]
    assert median(learned) < 0.7 * median(drawn)


@pytest.mark.parametrize("executor, least", [("gluon", 0.98), ("triton", 0.95)])
def test_spills_are_known_before_anything_is_compiled(executor, least):
    """Of all kernels of the table, against what the assembler says of them."""
    rows = ((p, c, row) for p, some in table().items() for c, row in some.items() if executor_of(c) == executor)
    ends = [((int(row["spilled"]) > SPILLED), needed(p, c)[1] > 0) for p, c, row in rows if row["ms"]]
    spilled = [known for said, known in ends if said]
    assert sum(said == known for said, known in ends) >= least * len(ends)
    assert sum(spilled) >= 0.7 * len(spilled) > 0


def test_without_a_prior_it_learns_from_trials_alone():
    found, chance = [], []
    for name in ("full D64 S4096", "full D64 S16384", "causal D64 S4096"):
        points, trial = space(PROBLEMS[name]), replayed(trials(PROBLEMS[name]))
        best = min(t.time for t in trials(PROBLEMS[name]).values())
        found += [tune(points, trial, 30, None, seed).best_after(30) / best for seed in range(3)]
        chance += [at_random(points, trial, 30, seed).best_after(30) / best for seed in range(20)]
    assert sum(found) / len(found) < sum(chance) / len(chance)


def test_the_same_seed_tries_the_same_points():
    problem = PROBLEMS["full D128 S4096"]
    one, two = (tune(space(problem), replayed(trials(problem)), 12, None, 3) for _ in range(2))
    assert one == two


# Trials --------------------------------------------------------------------------------------------------------------


def test_nothing_wrong_is_measured():
    timed = []
    trial = checked(lambda p: p, lambda result: result != ("bad",), lambda p: timed.append(p) or 1.0)
    assert [trial((w,)).status for w in ("good", "bad")] == ["ok", "wrong"] and timed == [("good",)]


def test_results_are_kept_on_disk(tmp_path):
    calls = []

    def trial(point):
        calls.append(point)
        return Trial(point, "ok", 1.5) if point[0] > 1 else Trial(point, "spill")

    for key, expected in (("plan a", 2), ("plan a", 2), ("plan b", 4)):
        cached = Cached(trial, tmp_path / "trials.jsonl", key)
        assert [cached((n, ("b", "i"))) for n in (1, 2)] == [
            Trial((1, ("b", "i")), "spill"), Trial((2, ("b", "i")), "ok", 1.5),
        ]  # fmt: skip
        assert len(calls) == expected

"""Spaces hold what constraints allow, exactly; a tuner on replayed tables beats chance."""

import csv
from collections import Counter
from functools import cache
from itertools import permutations, product
from math import exp, inf
from pathlib import Path
from statistics import median

import numpy as np
import pytest

from bench.fit_prediction import kernel_of
from onepass.lowering.schedule.predict import Configuration, problem_of, registers, seconds, shared_bytes
from onepass.space import Constraint, Parameter, Space
from onepass.tuner import Cached, History, Trial, at_random, checked, replayed, tune

pytest.importorskip("sklearn")
SEEDS, BUDGET = 20, 30
TABLES = sorted((Path(__file__).resolve().parent.parent / "bench" / "results").glob("configurations*.csv"))

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


# Tables --------------------------------------------------------------------------------------------------------------


def made_table(seed: int) -> tuple[dict[tuple, Trial], object]:
    """Times that the prediction misses by an effect of every value; of spills and wrong results it knows nothing."""
    generator, kernel = np.random.default_rng(seed), kernel_of(4, 16, 4096, 128)
    values = (("ptr", "tma", "ws", "gluon"), (64, 128, 192, 256), (64, 128), (4, 8, 12), (1, 2, 3))
    effects = [{v: exp(generator.normal() * 0.06) for v in column} for column in values]
    orders = {o: exp(generator.normal() * 0.03) for o in permutations("bhi")}
    table, prior = {}, {}
    for point in product(*values):
        chosen = Configuration(*point)
        predicted = seconds(kernel, chosen)
        held = registers(problem_of(kernel, kernel.loops[0], chosen))
        if point[1] % (4 * point[3]) or predicted == inf or held > 400:  # what is known before
            continue
        spills = held > 330
        wrong = point[0] == "ws" and point[4] == 3
        for order, factor in orders.items():
            true = predicted * factor * np.prod([e[v] for e, v in zip(effects, point)]) * exp(generator.normal() * 0.01)
            status = "spill" if spills else "wrong" if wrong else "ok"
            table[*point, order] = Trial((*point, order), status, float(true) if status == "ok" else inf)
            prior[*point, order] = predicted
    return table, prior.__getitem__


def measured_tables(path: Path):
    """For each problem of a measured file: its table and its prior."""
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    problems = dict.fromkeys((r["variant"], r["batch"], r["heads"], r["length"], r["width"]) for r in rows)
    for problem in problems:
        variant, *sizes = problem
        if variant != "full":
            continue
        kernel, table, prior = kernel_of(*map(int, sizes)), {}, {}
        for r in (r for r in rows if (r["variant"], *(r[n] for n in ("batch", "heads", "length", "width"))) == problem):
            executor = {"triton": "ptr"}.get(r["executor"], r["executor"])
            numbers = tuple(int(r[n]) for n in ("rows", "loop", "warps", "stages"))
            point, right = (executor, *numbers, r["order"], r["more"]), r["status"] == "ok"
            predicted = seconds(kernel, Configuration(executor, *numbers))
            if predicted < inf:
                table[point] = Trial(point, r["status"], float(r["ms"]) if right else inf)
                prior[point] = predicted
        yield table, prior.__getitem__


def facts(point: tuple) -> tuple[float, float]:
    """What is known of a configuration of one problem before it is tried, up to a factor."""
    kernel, chosen = kernel_of(4, 16, 4096, 128), Configuration(*point[:5])
    problem = problem_of(kernel, kernel.loops[0], chosen)
    return registers(problem), shared_bytes(problem, chosen)


def space_of(table: dict[tuple, Trial]) -> Space:
    columns = list(zip(*table))
    parameters = tuple(Parameter(f"p{n}", tuple(dict.fromkeys(column))) for n, column in enumerate(columns))
    return Space(parameters, (Constraint(tuple(p.name for p in parameters), lambda *point: point in table),))


@cache
def replays(number: int) -> tuple[float, list[History], list[History]]:
    """(the best time, tuned, random) of one table, for all seeds."""
    made = [made_table(0), *(t for path in TABLES for t in measured_tables(path))]
    table, prior = made[number]
    space, trial = space_of(table), replayed(table)
    best = min(t.time for t in table.values())
    tuned = [tune(space, trial, BUDGET, prior, seed, facts) for seed in range(SEEDS)]
    return best, tuned, [at_random(space, trial, BUDGET, seed) for seed in range(SEEDS)]


COUNT = 1 + sum(1 for path in TABLES for _ in measured_tables(path))


@pytest.mark.parametrize("number", range(COUNT))
def test_thirty_trials_are_enough(number):
    best, tuned, drawn = replays(number)
    assert median(h.best_after(BUDGET) for h in tuned) <= 1.05 * best
    for count in (10, 20, 30):
        assert median(h.best_after(count) for h in tuned) < median(h.best_after(count) for h in drawn)
    assert median(h.infeasible for h in tuned) < 0.15
    assert all(len({t.point for t in h.trials}) == len(h.trials) == BUDGET for h in tuned)


def test_without_a_prior_it_learns_from_trials_alone():
    table, _ = made_table(1)
    space, trial = space_of(table), replayed(table)
    tuned = median(tune(space, trial, 40, None, seed, facts).best_after(40) for seed in range(3))
    drawn = median(at_random(space, trial, 40, seed).best_after(40) for seed in range(3))
    assert tuned < drawn


def test_the_same_seed_tries_the_same_points():
    table, prior = made_table(2)
    one, two = (tune(space_of(table), replayed(table), 12, prior, 3) for _ in range(2))
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

"""The settings of a Hopper kernel: where each is from, that what is solved runs, that what ships is what is solved."""

from dataclasses import asdict, replace
from functools import cache

import pytest

from bench.solve import variants
from onepass.lowering.gluon import launch
from onepass.lowering.gluon.launch import choice_of, prepare, row_of
from onepass.lowering.hopper.config import DEFAULTS, Schedule
from onepass.lowering.hopper.kernel_form import accumulated, bind, width
from onepass.lowering.schedule import choose_config, solver
from onepass.lowering.schedule import schedule_store as solving
from onepass.lowering.schedule.checker import complaints
from onepass.lowering.schedule.choose_config import best, choose, fits
from onepass.lowering.schedule.kernel_time import Configuration, problem_of
from onepass.lowering.schedule.problem import Schedule as Solution
from onepass.lowering.schedule.schedule_store import anonymous, solved
from onepass.lowering.schedule.subtiling import subtiled
from tests.support.gluon_ahead_of_time import plan_of

pytest.importorskip("ortools")


@cache
def binding_of(kind="full", size=64, length=1024):
    return bind(plan_of(kind, size, rows=length, columns=length).kernels[0])


@pytest.fixture
def no_defaults(monkeypatch):
    monkeypatch.setattr(launch, "default_row", lambda *_: None)


# Without any measured row --------------------------------------------------------------------------------------------


def test_every_variant_that_binds_is_scheduled_without_defaults(no_defaults, monkeypatch):
    monkeypatch.setattr(solving, "WORK", 0.02)  # what does not ship may stay unknown here: what runs is the question
    count = 0
    for name, binding in variants():
        choice = choice_of(binding, {}, binding.overlays)
        schedule, count = choice.schedule, count + 1
        assert choice.solved is not None, name
        assert fits(binding, binding.overlays, schedule) and schedule.terminates, name
        assert accumulated(binding) // 2 + schedule.tile * 3 // 4 <= schedule.registers[1], name
        prepare(binding, schedule, {}, binding.overlays)
    assert count >= 40


@pytest.mark.parametrize("size", [80, 192])
def test_a_width_that_was_not_measured_is_solved(size):
    choice = choice_of(binding_of("full", size), {})
    assert choice.origins["consumers"].startswith("solved (optimal")
    assert "predicted to be the fastest of" in choice.origins["depth"]
    assert choice.solved.interval >= choice.solved.bound
    assert f"in {choice.solved.interval} slots" in str(choice)


def test_a_width_that_was_measured_is_not(monkeypatch):
    monkeypatch.setattr(choose_config, "best", lambda *_: pytest.fail("a measured kernel was solved"))
    binding = binding_of("full", 128)
    choice = choice_of(binding, {})
    assert set(choice.origins.values()) == {"measured on an H200"}
    assert choice.schedule == row_of(binding, {}).schedule


def test_without_a_solver_and_a_schedule_that_ships_the_settings_are_predicted(monkeypatch):
    def missing(*_):
        raise solving.SolverMissing("none")

    monkeypatch.setattr(solving, "solve", missing)
    monkeypatch.setattr(solving, "shipped_schedules", dict)
    solving._solved.cache_clear()
    best.cache_clear()
    choice = choice_of(binding_of("full", 80), {})
    assert choice.solved.status == "missing" and "the solver says missing" in choice.origins["tile"]
    assert fits(binding_of("full", 80), (), choice.schedule)
    solving._solved.cache_clear()
    best.cache_clear()


@pytest.mark.parametrize("kind, size", [("bias", 128), ("softcap", 96), ("narrow", 192)])
def test_a_first_use_builds_small_models_only(kind, size, monkeypatch):
    """What has no place in the work of a first use stays unknown, and its settings are predicted."""
    built = []
    model = solver._Model
    sized = lambda problem, interval, count: (
        built.append(solver.size(problem, interval, count)) or model(problem, interval, count)
    )
    monkeypatch.setattr(solver, "_Model", sized)
    monkeypatch.setattr(solving, "shipped_schedules", dict)
    solving._solved.cache_clear()
    best.cache_clear()
    binding = binding_of(kind, size)
    choice = best(binding, (), binding.overlays)
    assert sum(built) <= 2 * solving.ROOM
    if choice.solved.knobs is None and choice.solved.status == "unknown":
        assert "the solver says unknown within the work of a first use" in str(choice)
    assert fits(binding, binding.overlays, choice.schedule)
    solving._solved.cache_clear()
    best.cache_clear()


def test_what_is_proved_impossible_is_not_chosen(monkeypatch):
    """Everything is infeasible for the solver but one warpgroup on 64 columns."""
    true = choose_config.solved

    def only(problem, consumers, columns, store):
        found = true(problem, consumers, columns, store)
        return found if (consumers, columns) == (1, 64) else replace(found, status="infeasible", knobs=None, size=0)

    monkeypatch.setattr(choose_config, "solved", only)
    best.cache_clear()
    found = best(binding_of("full", 128), ())
    assert (found.schedule.consumers, found.schedule.tile) == (1, 64)
    best.cache_clear()


def test_a_solved_interval_is_part_of_the_prediction():
    """A tile whose best schedule takes much longer than the model thinks is not the fastest any more."""
    binding = binding_of("full", 128)
    first = best(binding, ()).schedule
    slow = lambda c: choose_config._seconds(binding, c, {}, 1 << 15)
    c = Configuration("gluon", 64 * first.consumers, first.tile, 4 * first.consumers, first.depth, first.queries)
    assert slow(c) > 3 * choose_config._seconds(binding, c, {}, 0)


def test_cutting_down_says_so():
    choice = choice_of(binding_of("full", 64, 64), {})
    assert choice.schedule.consumers == 1 and choice.origins["consumers"] == choose_config.LENGTH
    assert choice.schedule.turns is False


# What ships ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind, size", [("full", 128), ("full", 256)])
def test_a_schedule_that_ships_is_what_the_solver_finds(kind, size):
    binding = binding_of(kind, size)
    schedule = best(binding, (), binding.overlays).schedule
    c = Configuration("gluon", 64 * schedule.consumers, schedule.tile, 4 * schedule.consumers, 2)
    tiles = subtiled(anonymous(problem_of(binding.kernel, binding.loop, c)), schedule.consumers)
    shipped, ships = solving.schedule_of(tiles, schedule.consumers)
    assert ships and complaints(tiles, shipped) == []
    again = solving.solve(tiles, solving.INTERVALS, (schedule.consumers,), solving.SHIPPED_WORK)
    assert again == shipped


def test_a_damaged_schedule_is_solved_again(monkeypatch):
    binding = binding_of("full", 256)
    c = Configuration("gluon", 128, 64, 8, 2)
    problem = problem_of(binding.kernel, binding.loop, c)
    tiles = subtiled(anonymous(problem), 2)
    right, _ = solving.schedule_of(tiles, 2)
    wrong = replace(right, interval=right.interval - 1)
    monkeypatch.setattr(solving, "shipped_schedules", lambda: {solving.key_of(tiles, 2): wrong})
    monkeypatch.setattr(solving, "WORK", solving.SHIPPED_WORK)
    monkeypatch.setattr(solving, "ROOM", solving.SHIPPED_ROOM)
    found, ships = solving.schedule_of(tiles, 2)
    assert not ships and found == right


def test_names_of_tensors_do_not_matter():
    binding = binding_of("full", 64)
    c = Configuration("gluon", 128, 64, 8, 2)
    problem = problem_of(binding.kernel, binding.loop, c)
    renamed = type(problem).from_json(problem.to_json().replace('"load ', '"load other '))
    keys = {solving.key_of(subtiled(anonymous(p), 2), 2) for p in (problem, renamed)}
    assert renamed != problem and len(keys) == 1


def test_what_was_solved_is_kept(monkeypatch):
    kept = {}
    store = type("Store", (), {"read": staticmethod(kept.get), "write": staticmethod(kept.__setitem__)})
    monkeypatch.setattr(solving, "shipped_schedules", dict)
    binding = binding_of("full", 256)
    problem = problem_of(binding.kernel, binding.loop, Configuration("gluon", 64, 64, 4, 2))
    solving._solved.cache_clear()
    first = solved(problem, 1, 64, store)
    assert len(kept) == 1 and Solution.from_json(solving.json.dumps(*kept.values())).found
    monkeypatch.setattr(solving, "solve", lambda *_: pytest.fail("it was kept"))
    solving._solved.cache_clear()
    assert solved(problem, 1, 64, store) == first
    solving._solved.cache_clear()


FORGED = {
    "no status": lambda kept: kept.pop("status"),
    "a status that is none": lambda kept: kept.update(status="proved"),
    "times of nothing": lambda kept: kept.update(times={}),
    "times as words": lambda kept: kept.update(times=dict.fromkeys(kept["times"], "now")),
    "a time beyond its iterations": lambda kept: kept["times"].update({max(kept["times"]): 10**12}),
    "an interval beyond those looked at": lambda kept: kept.update(interval=10**12),
    "an interval below the bound": lambda kept: kept.update(interval=1),
    "other warpgroups": lambda kept: kept.update(tried=[[kept["interval"], 10**12, "optimal"]]),
    "rings that are too short": lambda kept: kept.update(depths=dict.fromkeys(kept["depths"], 0)),
    "a field more": lambda kept: kept.update(more=1),
    "nothing": lambda kept: kept.clear(),
}


@pytest.mark.parametrize("change", FORGED.values(), ids=FORGED)
def test_a_kept_schedule_that_cannot_run_is_solved_again(change, monkeypatch):
    binding = binding_of("full", 256)
    problem = problem_of(binding.kernel, binding.loop, Configuration("gluon", 64, 64, 4, 2))
    tiles = subtiled(anonymous(problem), 1)
    right, _ = solving.schedule_of(tiles, 1)
    assert right.found
    kept = asdict(right)
    change(kept)
    store = type("Store", (), {"read": staticmethod(lambda key: kept), "write": staticmethod(lambda key, body: None)})
    monkeypatch.setattr(solving, "shipped_schedules", dict)
    asked = []
    monkeypatch.setattr(solving, "solve", lambda *_: asked.append(1) or right)
    assert solving.schedule_of(tiles, 1, store) == (right, False) and asked


# Rows ----------------------------------------------------------------------------------------------------------------


def test_measured_rows_terminate_and_fit():
    for row in DEFAULTS:
        assert row.schedule.terminates, row
        size = min(row.width, row.columns)
        if size in (64, 128, 256):
            binding = binding_of("full", size)
            assert (width(binding), accumulated(binding)) == (size, size)
            found = choose(binding, {}, (), replace(row, width=size, columns=size))
            assert isinstance(found.schedule, Schedule)

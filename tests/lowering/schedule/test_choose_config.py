"""The settings of a Hopper kernel: where each is from, that what is solved runs, that what ships is what is solved."""

from dataclasses import asdict, replace
from functools import cache

import pytest

from bench.solve import variants
from onepass.lowering.gluon.launch import SuitedTensors, choice_of, prepare
from onepass.lowering.hopper import config
from onepass.lowering.hopper.config import HOPPER_DEFAULTS, HopperConfig
from onepass.lowering.hopper.form_facts import accumulated, width
from onepass.lowering.hopper.kernel_class import row_of
from onepass.lowering.hopper.kernel_form import bind
from onepass.lowering.schedule import choose_config, schedule_store, solver
from onepass.lowering.schedule.checker import complaints
from onepass.lowering.schedule.choose_config import best, choose, fits
from onepass.lowering.schedule.kernel_time import problem_of
from onepass.lowering.schedule.problem import PipelineSchedule
from onepass.lowering.schedule.schedule_store import anonymous, solved
from onepass.lowering.schedule.subtiling import subtiled
from tests.support.gluon_ahead_of_time import plan_of

pytest.importorskip("ortools")


@cache
def binding_of(kind="full", size=64, length=1024):
    return bind(plan_of(kind, size, rows=length, columns=length).kernels[0])


@pytest.fixture
def no_defaults(monkeypatch):
    monkeypatch.setattr(config, "HOPPER_DEFAULTS", ())


# Without any measured row --------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_every_variant_that_binds_is_scheduled_without_defaults(no_defaults, monkeypatch):
    monkeypatch.setattr(
        schedule_store, "WORK", 0.02
    )  # what does not ship may stay unknown here: what runs is the question
    count = 0
    for name, binding in variants():
        choice = choice_of(binding, {}, binding.overlays)
        schedule, count = choice.config, count + 1
        assert choice.solved is not None, name
        assert fits(binding, binding.overlays, schedule) and schedule.terminates, name
        assert accumulated(binding) // 2 + schedule.loop_tile * 3 // 4 <= schedule.registers[1], name
        prepare(binding, schedule, {}, SuitedTensors(binding.overlays))
    assert count >= 40


@pytest.mark.parametrize("size", [80, 192])
def test_a_width_that_was_not_measured_is_solved(size):
    choice = choice_of(binding_of("full", size), {})
    assert choice.origins["consumers"].startswith("solved (optimal")
    assert "predicted to be the fastest of" in choice.origins["stages"]
    assert choice.solved.interval >= choice.solved.bound
    assert f"in {choice.solved.interval} slots" in str(choice)


def test_a_width_that_was_measured_is_not(monkeypatch):
    monkeypatch.setattr(choose_config, "best", lambda *_: pytest.fail("a measured kernel was solved"))
    binding = binding_of("full", 128)
    choice = choice_of(binding, {})
    assert set(choice.origins.values()) == {"measured on an H200"}
    assert choice.config == row_of(binding, {}).config


def test_without_a_solver_and_a_schedule_that_ships_the_settings_are_predicted(monkeypatch):
    def missing(*_):
        raise schedule_store.SolverMissing("none")

    monkeypatch.setattr(schedule_store, "solve", missing)
    monkeypatch.setattr(schedule_store, "shipped_schedules", dict)
    schedule_store._solved.cache_clear()
    best.cache_clear()
    choice = choice_of(binding_of("full", 80), {})
    assert choice.solved.status == "missing" and "the solver says missing" in choice.origins["loop_tile"]
    assert fits(binding_of("full", 80), (), choice.config)
    schedule_store._solved.cache_clear()
    best.cache_clear()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind, size", [("bias", 128), ("softcap", 96), ("narrow", 192)])
def test_a_first_use_builds_small_models_only(kind, size, monkeypatch):
    """What has no place in the work of a first use stays unknown, and its settings are predicted."""
    built = []
    model = solver._Model
    sized = lambda problem, interval, count: (
        built.append(solver.size(problem, interval, count)) or model(problem, interval, count)
    )
    monkeypatch.setattr(solver, "_Model", sized)
    monkeypatch.setattr(schedule_store, "shipped_schedules", dict)
    schedule_store._solved.cache_clear()
    best.cache_clear()
    binding = binding_of(kind, size)
    choice = best(binding, (), binding.overlays)
    assert sum(built) <= 2 * schedule_store.ROOM
    if choice.solved.config is None and choice.solved.status == "unknown":
        assert "the solver says unknown within the work of a first use" in str(choice)
    assert fits(binding, binding.overlays, choice.config)
    schedule_store._solved.cache_clear()
    best.cache_clear()


def test_what_is_proved_impossible_is_not_chosen(monkeypatch):
    """Everything is infeasible for the solver but one warpgroup on 64 columns."""
    true = choose_config.solved

    def only(problem, consumers, columns, store):
        found = true(problem, consumers, columns, store)
        return found if (consumers, columns) == (1, 64) else replace(found, status="infeasible", config=None, size=0)

    monkeypatch.setattr(choose_config, "solved", only)
    best.cache_clear()
    found = best(binding_of("full", 128), ())
    assert (found.config.consumers, found.config.loop_tile) == (1, 64)
    best.cache_clear()


def test_a_solved_interval_is_part_of_the_prediction():
    """A tile whose best schedule takes much longer than the model thinks is not the fastest any more."""
    binding = binding_of("full", 128)
    first = best(binding, ()).config
    slow = lambda c: choose_config.predicted_seconds(binding, c, {}, 1 << 15)
    c = first
    assert slow(c) > 3 * choose_config.predicted_seconds(binding, c, {}, 0)


def test_cutting_down_says_so():
    choice = choice_of(binding_of("full", 128, 64), {})
    assert choice.config.consumers == 1 and choice.origins["consumers"] == choose_config.LENGTH
    assert choice.config.turns is False


# What ships ----------------------------------------------------------------------------------------------------------


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind, size", [("full", 128), ("full", 256)])
def test_a_schedule_that_ships_is_what_the_solver_finds(kind, size):
    binding = binding_of(kind, size)
    schedule = best(binding, (), binding.overlays).config
    c = replace(schedule, stages=2)
    tiles = subtiled(anonymous(problem_of(binding.kernel, binding.loop, c)), schedule.consumers)
    shipped, ships = schedule_store.schedule_of(tiles, schedule.consumers)
    assert ships and complaints(tiles, shipped) == []
    again = schedule_store.solve(tiles, schedule_store.INTERVALS, (schedule.consumers,), schedule_store.SHIPPED_WORK)
    assert again == shipped


def test_a_damaged_schedule_is_solved_again(monkeypatch):
    binding = binding_of("full", 256)
    c = HopperConfig(2, 64, 2)
    problem = problem_of(binding.kernel, binding.loop, c)
    tiles = subtiled(anonymous(problem), 2)
    right, _ = schedule_store.schedule_of(tiles, 2)
    wrong = replace(right, interval=right.interval - 1)
    monkeypatch.setattr(schedule_store, "shipped_schedules", lambda: {schedule_store.key_of(tiles, 2): wrong})
    monkeypatch.setattr(schedule_store, "WORK", schedule_store.SHIPPED_WORK)
    monkeypatch.setattr(schedule_store, "ROOM", schedule_store.SHIPPED_ROOM)
    found, ships = schedule_store.schedule_of(tiles, 2)
    assert not ships and found == right


def test_names_of_tensors_do_not_matter():
    binding = binding_of("full", 64)
    c = HopperConfig(2, 64, 2)
    problem = problem_of(binding.kernel, binding.loop, c)
    renamed = type(problem).from_json(problem.to_json().replace('"load ', '"load other '))
    keys = {schedule_store.key_of(subtiled(anonymous(p), 2), 2) for p in (problem, renamed)}
    assert renamed != problem and len(keys) == 1


def test_what_was_solved_is_kept(monkeypatch):
    kept = {}
    store = type("Store", (), {"read": staticmethod(kept.get), "write": staticmethod(kept.__setitem__)})
    monkeypatch.setattr(schedule_store, "shipped_schedules", dict)
    binding = binding_of("full", 256)
    problem = problem_of(binding.kernel, binding.loop, HopperConfig(1, 64, 2))
    schedule_store._solved.cache_clear()
    first = solved(problem, 1, 64, store)
    assert len(kept) == 1 and PipelineSchedule.from_json(schedule_store.json.dumps(*kept.values())).found
    monkeypatch.setattr(schedule_store, "solve", lambda *_: pytest.fail("it was kept"))
    schedule_store._solved.cache_clear()
    assert solved(problem, 1, 64, store) == first
    schedule_store._solved.cache_clear()


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


@pytest.mark.sampled(7)
@pytest.mark.parametrize("change", FORGED.values(), ids=FORGED)
def test_a_kept_schedule_that_cannot_run_is_solved_again(change, monkeypatch):
    binding = binding_of("full", 256)
    problem = problem_of(binding.kernel, binding.loop, HopperConfig(1, 64, 2))
    tiles = subtiled(anonymous(problem), 1)
    right, _ = schedule_store.schedule_of(tiles, 1)
    assert right.found
    kept = asdict(right)
    change(kept)
    store = type("Store", (), {"read": staticmethod(lambda key: kept), "write": staticmethod(lambda key, body: None)})
    monkeypatch.setattr(schedule_store, "shipped_schedules", dict)
    asked = []
    monkeypatch.setattr(schedule_store, "solve", lambda *_: asked.append(1) or right)
    assert schedule_store.schedule_of(tiles, 1, store) == (right, False) and asked


# Rows ----------------------------------------------------------------------------------------------------------------


def test_measured_rows_terminate_and_fit():
    for row in HOPPER_DEFAULTS:
        assert row.config.terminates, row
        size = min(row.width, row.columns)
        if size in (64, 128, 256):
            binding = binding_of("full", size)
            assert (width(binding), accumulated(binding)) == (size, size)
            found = choose(binding, {}, (), replace(row, width=size, columns=size))
            assert isinstance(found.config, HopperConfig)

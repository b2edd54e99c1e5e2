"""Schedules of derived loops: facts that must not move, and a checker that agrees with unrolling the loop by hand."""

from collections import Counter
from dataclasses import replace
from functools import cache
from math import prod

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onepass.egraph.terms.ops import OPS, iota, make, sum_over, tanh
from onepass.egraph.terms.term import Dim, Tensor
from onepass.lowering.plan.device import COSTS, H200, PEAK
from onepass.lowering.planning.planner import build_plan
from onepass.lowering.schedule.checker import complaints
from onepass.lowering.schedule.from_loop import Tile, loop_problem
from onepass.lowering.schedule.problem import PRODUCER, PipelineSchedule, Problem
from onepass.lowering.schedule.solver import solve
from onepass.lowering.schedule.subtiling import parted, subtiled, with_registers
from tests.support.attention_terms import attention, loaded, one_pass, stored

pytest.importorskip("ortools")


def problem_of(
    score=lambda s, i, j: s, width=128, dtype="bfloat16", form=one_pass, tile=Tile(), machine=PEAK  # noqa: B008
) -> Problem:  # fmt: skip
    """The loop of attention whose scores went through `score`, as the plan has it. Facts are at the vendor's rates."""
    i, j, d, e, b = Dim("i", 4096), Dim("j", 4096), Dim("d", width), Dim("e", width), Dim("b", 8)
    tensor = lambda name, *dims: loaded(Tensor(name, dtype, tuple(x.size for x in dims)), *dims)
    scores = sum_over(d, tensor("q", b, i, d) * tensor("k", b, j, d)) * width**-0.5
    term = stored(form(j, score(scores, iota(i), iota(j)), tensor("v", b, j, e)), dtype)
    kernel = build_plan(term, Tensor("out", dtype, (8, 4096, width)), (b, i, e)).kernels[-1]
    return loop_problem(kernel, kernel.loops[0], tile, machine)


def softcap(s, i, j):
    return tanh(s / 20.0) * 20.0


@cache
def alternating() -> tuple[Problem, PipelineSchedule]:
    problem = subtiled(problem_of(), 2)
    return problem, solve(problem)


@cache
def alone() -> tuple[Problem, PipelineSchedule]:
    problem = with_registers(problem_of(), (1, 216))
    return problem, solve(problem)


# Facts ---------------------------------------------------------------------------------------------------------------

FACTS = [  # problem, registers by consumers, (bound, unit), interval and consumers of the best schedule
    ("two sub-tiles", lambda: subtiled(problem_of(), 2), None, (16, "tensor"), (16, 2)),
    ("two sub-tiles, few registers", lambda: subtiled(problem_of(), 2), ((1, 160), (2, 160)), (16, "tensor"), (16, 2)),
    ("one tile", problem_of, ((1, 216),), (8, "tensor"), (10, 1)),
    ("exp in two", lambda: parted(problem_of(), "weight 0", 2), ((1, 240),), (8, "tensor"), (8, 1)),
    ("exp in two, few registers", lambda: parted(problem_of(), "weight 0", 2), ((1, 216),), (8, "tensor"), (10, 1)),
    ("width 64", lambda: subtiled(problem_of(width=64), 2), None, (8, "tensor"), (8, 2)),
    ("softcap", lambda: subtiled(problem_of(softcap), 2), ((1, 240), (2, 240)), (24, "special"), (24, 2)),
]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("make_problem, registers, bound, best", [f[1:] for f in FACTS], ids=[f[0] for f in FACTS])
def test_fact(make_problem, registers, bound, best):
    problem = make_problem() if registers is None else with_registers(make_problem(), *registers)
    schedule = solve(problem)
    assert (problem.resource_bound, problem.bottleneck) == bound
    assert (schedule.status, schedule.interval, schedule.consumers) == ("optimal", *best)
    assert complaints(problem, schedule) == []


def test_shorter_intervals_and_fewer_warpgroups_are_proved_infeasible():
    assert alone()[1].tried == ((8, 1, "infeasible"), (9, 1, "infeasible"), (10, 1, "optimal"))
    assert solve(alternating()[0], intervals=1, consumers=(1,)).status == "infeasible"


def test_as_measured_one_warpgroup_waits_for_its_tiles_and_two_do_not():
    """The L2 gives 38 bytes a clock, not 64: tiles must serve more rows than those of one warpgroup."""
    alone, two = (subtiled(problem_of(machine=H200), count) for count in (1, 2))
    assert (alone.bottleneck, two.bottleneck) == ("copy", "tensor")
    assert solve(alone).interval == 14 and solve(two).interval == 16


def test_the_warpgroups_take_turns():
    problem, schedule = alternating()
    tensor = sorted((schedule.times[o.name] % 16, o.name) for o in problem.operations if "tensor" in o.work)
    assert [name.split()[0] for _, name in tensor] == ["product", "accumulate"] * 2
    assert [name[-1] for _, name in tensor] == ["0", "1", "1", "0"]
    assert schedule.crossing == 0 and schedule.length == 24


def test_the_same_problem_has_the_same_schedule():
    problem, schedule = alternating()
    assert solve(problem) == schedule


def test_too_little_work_is_unknown_and_never_a_proof():
    assert solve(alternating()[0], intervals=1, consumers=(1,), work=1e-6).status == "unknown"


# Where problems come from --------------------------------------------------------------------------------------------


def test_every_operation_has_a_cost():
    assert set(COSTS) == set(OPS)


def test_a_sub_tile_costs_what_its_elements_cost():
    work = problem_of().work()
    assert work["tensor"] == 2 * (2 * 64 * 128 * 128) / 4096 and work["special"] == 64 * 128 / 16
    assert problem_of(softcap).work()["special"] == 3 * work["special"]
    assert subtiled(problem_of(), 3).work()["tensor"] == 3 * work["tensor"]
    assert subtiled(problem_of(), 3).work()["copy"] == work["copy"], "loads serve all sub-tiles"
    assert parted(problem_of(), "weight 0", 3).work() == work


def test_a_bias_is_loaded_and_a_position_is_computed():
    i, j = Dim("i", 4096), Dim("j", 4096)
    bias = loaded(Tensor("bias", "bfloat16", (4096, 4096)), i, j)
    with_bias = problem_of(lambda s, *_: s + bias)
    load = next(o for o in with_bias.operations if o.name == "load bias")
    assert load.bytes == 2 * 64 * 128 and load.private
    assert {e.after for e in with_bias.edges if e.before == "load bias"} == {"pointwise 0"}
    by_distance = problem_of(lambda s, i, j: s + make("cast", (j - i,), ("float32",)) * 0.5)
    assert not any(o.name == "load bias" for o in by_distance.operations)
    assert by_distance.work()["fma"] > problem_of().work()["fma"]


def test_a_loop_without_scores_has_no_rescaling():
    case = attention((2,), 512, 512, 64, dtype="bfloat16", form=lambda j, s, v: sum_over(j, make("sigmoid", (s,)) * v))
    kernel = build_plan(case.term, case.output, case.order).kernels[-1]
    problem = loop_problem(kernel, kernel.loops[0])
    kinds = Counter(o.name.split()[0] for o in problem.operations)
    assert kinds == {"product": 1, "load": 2, "narrow": 1, "accumulate": 1}
    assert solve(problem).found


@pytest.mark.parametrize("record", [0, 1], ids=["problem", "schedule"])
def test_records_survive_json(record):
    value = alternating()[record]
    assert type(value).from_json(value.to_json()) == value


# The checker against the unrolled loop -------------------------------------------------------------------------------


def runs(problem: Problem, schedule: PipelineSchedule, iterations: int = 12) -> bool:
    """Runs iterations of the loop in straight time, and looks at every slot of the steady state."""
    by_name = {o.name: o for o in problem.operations}
    start = {(n, i): t + i * schedule.interval for n, t in schedule.times.items() for i in range(iterations)}
    across = lambda e: schedule.warps[e.before] not in (PRODUCER, schedule.warps[e.after])
    if any((schedule.warps[n] == PRODUCER) != o.streaming for n, o in by_name.items()):
        return False
    for e in problem.edges:
        needed = e.delay + e.transfer * across(e)
        for i in range(e.distance, iterations):
            if start[e.after, i] < start[e.before, i - e.distance] + needed:
                return False
    busy, threads, held, inside = Counter(), Counter(), Counter(), set()
    for (name, _), t in start.items():
        o, warp = by_name[name], schedule.warps[name]
        sends = [e for e in problem.edges if e.before == name and across(e) and e.transfer]
        spans = [(t, o.duration, 1)] * (o.synchronous and not o.streaming)
        spans += [(t + o.latency, e.transfer, 0) for e in sends]
        for slot in range(t, t + o.duration):
            busy.update({(unit, slot): -(-clocks // o.duration) for unit, clocks in o.work.items()})
        sent = {(warp, s) for begin, count, mine in spans if not mine for s in range(begin, begin + count)}
        own = {(warp, s) for begin, count, mine in spans if mine for s in range(begin, begin + count)}
        threads.update(dict.fromkeys(sent, 1000))
        threads.update(dict.fromkeys(own, 1))
        inside |= {(warp, s) for begin, count, _ in spans for s in range(begin + 1, begin + count)}
    for value in problem.values:
        warps = {schedule.warps[n] for n in (value.producer, *(n for n, _ in value.readers))}
        for i in range(iterations):
            readers = [(n, i + d) for n, d in value.readers if i + d < iterations]
            end = max((start[r] + by_name[r[0]].duration for r in readers), default=0)
            begin = start[value.producer, i]
            slots = range(begin, begin + schedule.interval if value.carried else end)
            held.update({(w, s): value.registers for w in warps for s in slots})
    budget = dict(problem.registers)[schedule.consumers]
    collides = any(count % 1000 > 1 or (count % 1000 and count >= 1000) for count in threads.values())
    issues = {(schedule.warps[n], t) for (n, _), t in start.items() if not by_name[n].synchronous}
    full = any(v > problem.slot for v in busy.values()) or any(v > budget for v in held.values())
    return not (full or collides or issues & {x for x in inside if x[0] != PRODUCER}) and rings_hold(problem, schedule)


def rings_hold(problem: Problem, schedule: PipelineSchedule) -> bool:
    room = problem.resident
    for o in (o for o in problem.operations if o.streaming):
        ends = (
            schedule.times[e.after] + e.distance * schedule.interval + next(
                x.duration for x in problem.operations if x.name == e.after
            )
            for e in problem.edges if e.before == o.name
        )  # fmt: skip
        alive = max(ends) - schedule.times[o.name] + problem.load_latency
        room += o.bytes * schedule.depths[o.name]
        if alive > schedule.depths[o.name] * schedule.interval:
            return False
    across = lambda e: schedule.warps[e.before] not in (PRODUCER, schedule.warps[e.after])
    return room + sum(e.bytes for e in problem.edges if across(e)) <= problem.shared_bytes


def claimed(problem: Problem, schedule: PipelineSchedule) -> PipelineSchedule:
    """The schedule with the figures that follow from its times and warps."""
    across = [e for e in problem.edges if schedule.warps[e.before] not in (PRODUCER, schedule.warps[e.after])]
    length = max(schedule.times[o.name] + o.duration for o in problem.operations)
    return replace(schedule, crossing=sum(e.bytes for e in across), waits=len(across), length=length)


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(st.data())
def test_the_checker_agrees_with_the_unrolled_loop(data):
    problem, schedule = alternating()
    if data.draw(st.booleans(), label="one tile"):
        problem, schedule = alone()
    moved = data.draw(st.dictionaries(st.sampled_from(sorted(schedule.times)), st.integers(-3, 5), max_size=3))
    times = {n: t + moved.get(n, 0) for n, t in schedule.times.items()}
    shift = max(0, -min(times.values()))
    warp = st.integers(1, schedule.consumers)
    moved_warps = data.draw(st.dictionaries(st.sampled_from(sorted(schedule.times)), warp, max_size=1))
    registers = data.draw(st.sampled_from([None, 160, 159, 216, 240]), label="registers")
    if registers:
        problem = with_registers(problem, (schedule.consumers, registers))
    mutant = replace(
        schedule,
        times={n: t + shift for n, t in times.items()},
        warps={**schedule.warps, **moved_warps},
        interval=schedule.interval + data.draw(st.sampled_from([0, 0, 0, 1, 2]), label="longer interval"),
    )
    mutant = claimed(problem, mutant)
    assert (complaints(problem, mutant) == []) == runs(problem, mutant)


def mutants(problem: Problem, schedule: PipelineSchedule):
    first, *_ = (o.name for o in problem.operations if "tensor" in o.work)
    weight = next(n for n in schedule.times if n.startswith("weight"))
    load = next(o.name for o in problem.operations if o.streaming)
    swapped = {n: {1: 2, 2: 1}.get(w, w) if n == weight else w for n, w in schedule.warps.items()}
    yield "moved later", problem, replace(schedule, times={**schedule.times, first: schedule.times[first] + 1})
    yield "moved earlier", problem, replace(schedule, times={**schedule.times, weight: schedule.times[weight] - 1})
    yield "other warpgroup", problem, replace(schedule, warps=swapped)
    yield "computed by the producer", problem, replace(schedule, warps={**schedule.warps, weight: PRODUCER})
    yield "loaded by a consumer", problem, replace(schedule, warps={**schedule.warps, load: 1})
    yield "shorter interval", problem, replace(schedule, interval=schedule.interval - 1)
    yield "too many registers", with_registers(problem, (2, 159)), schedule
    yield "no such partition", with_registers(problem, (1, 216)), schedule
    yield "shallow ring", problem, replace(schedule, depths={n: d - 1 for n, d in schedule.depths.items()})
    yield "too much shared memory", replace(problem, shared_bytes=4 * 32768), schedule
    fewer = {n: t for n, t in schedule.times.items() if n != weight}
    yield "missing operation", problem, replace(schedule, times=fewer)
    yield "false length", problem, replace(schedule, length=schedule.length - 1)


@pytest.mark.parametrize("number", range(12))
def test_a_mutant_is_rejected(number):
    problem, schedule = alternating()
    every = list(mutants(problem, schedule))
    assert len(every) == 12
    name, problem, mutant = every[number]
    assert complaints(problem, mutant), name


@pytest.mark.sampled(1)
@pytest.mark.parametrize("width, tile", [(64, Tile(64, 64)), (80, Tile()), (128, Tile(64, 64)), (256, Tile(64, 64))])
def test_no_interval_is_below_the_bound(width, tile):
    problem = subtiled(problem_of(width=width, tile=tile), 2)
    schedule = solve(problem)
    assert schedule.found and schedule.interval >= problem.bound and complaints(problem, schedule) == []
    assert problem.work()["tensor"] == prod((2, 2, 2, 64, tile.columns, width)) // 4096

"""The instructions of a kernel's warps: for warp-specialised kernels they are held to the text that is emitted."""

import re
from dataclasses import replace
from itertools import groupby

import pytest

from onepass.lowering.cost.actors import COPY, TENSOR, VECTOR, Prices, kind_of, plain, specialised
from onepass.lowering.cost.simulation import Await, Raise, Work, simulated
from onepass.lowering.plan.kernel_config import TritonConfig
from onepass.lowering.schedule.kernel_time import problem_of
from tests.support.gluon_ahead_of_time import plan_of, source_of

KINDS = "full causal window bias difference logarithm peak groups sigmoid documents joined evoformer".split()
TILES = 6


def unit_prices(problem, **more):
    return Prices({o.name: 100.0 for o in problem.operations}, **more)


def without_repeats(tokens):
    return [token for token, _ in groupby(tokens)]


TEXT = {
    r"take_turn\(": "take", r"give_turn\(": "give", r"mbarrier\.wait\((\w+)_full": "wait {}",
    r"mbarrier\.arrive\((\w+)_empty": "free {}", r"= warpgroup_mma\(": "product", r"= warpgroup_mma_wait\(": "finish",
    r"= (?:rescaled|multiplied)\(": "behind",
}  # fmt: skip


def read(line):
    for pattern, token in TEXT.items():
        if match := re.search(pattern, line):
            return token.format(*match.groups())
    return None


def loop_of(text):
    """What the loop over an item's tiles does in order, by the emitted text of a consumer."""
    consumer = text[text.index("def consumer(") :]
    consumer = consumer[: consumer.index("@gluon.jit")]
    lines = consumer.splitlines()
    begin = next(n for n, line in enumerate(lines) if re.match(r"\s+for t in range\(1, ", line))
    indent = len(lines[begin]) - len(lines[begin].lstrip())
    inside = []
    for line in lines[begin + 1 :]:
        if len(line) - len(line.lstrip()) <= indent:
            break
        inside.append(line)
    return without_repeats([token for line in inside if (token := read(line))])


def said(instruction):
    if isinstance(instruction, Work):
        behind = instruction.label.startswith("rescale")
        return "product" if instruction.unit == TENSOR else "behind" if behind else None
    name = instruction.counter.partition(" ")[2]
    if name.startswith("turn"):
        return "take" if isinstance(instruction, Await) else "give"
    if name.startswith("load"):
        return ("wait " if isinstance(instruction, Await) else "free ") + name.split()[1]
    return "finish" if name.endswith(("scores", "values")) else None


def contains(long, short):
    return any(long[n : n + len(short)] == short for n in range(len(long) - len(short) + 1))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("changed", [{}, {"turns": True}, {"late": True}, {"chained": True}], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_a_warpgroup_does_what_the_text_says_in_its_order(kind, changed):
    plan = plan_of(kind, 64, rows=1024, columns=1024)
    binding, config, source = source_of(plan)
    config = replace(config, **{"turns": False, "late": False, "chained": False, **changed})
    _, config, source = source_of(plan, config.terminating)
    problem = problem_of(binding.kernel, binding.loop, config, refined=True)
    actors, _ = specialised(binding, problem, config, unit_prices(problem), TILES)
    consumer = actors[1]
    mine = without_repeats([token for one in consumer if (token := said(one))])
    text = loop_of(source.text)
    assert text.count("product") >= 1 and contains(mine, text * 3), (mine, text)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", ["full", "bias", "difference"])
def test_the_copies_are_those_of_the_text_in_its_order(kind):
    plan = plan_of(kind, 64, rows=1024, columns=1024)
    binding, config, source = source_of(plan)
    problem = problem_of(binding.kernel, binding.loop, config, refined=True)
    actors, _ = specialised(binding, problem, config, unit_prices(problem), TILES)
    producer = source.text[source.text.index("def producer(") : source.text.index("def consumer(")]
    loop = producer[producer.index("for t in range(0,") :]
    copied = [match.split("_tiles")[0] for match in re.findall(r"copy_in\(\w+, \[[^\]]*\], [^,]+, (\w+)", loop)]
    works = [one for one in actors[0] if isinstance(one, Work) and one.step == 2]
    mine = [one.label.split()[1] for one in works]
    assert mine == [name for name in copied if name != "q"]


@pytest.mark.parametrize("stages", [1, 2, 3, 4])
def test_a_ring_holds_as_many_tiles_as_there_are_stages(stages):
    """So many are copied before the first product of values is done."""
    plan = plan_of("full", 64, rows=1024, columns=1024)
    binding, config, _ = source_of(plan)
    config = replace(config, stages=stages).terminating
    problem = problem_of(binding.kernel, binding.loop, config, refined=True)
    clocks = {o.name: 1.0 if o.streaming else 1000.0 for o in problem.operations}
    actors, counters = specialised(binding, problem, config, Prices(clocks), TILES)
    spans = simulated(actors, (VECTOR,), counters)
    read = min(s.end for s in spans if s.work.label.startswith("accumulate"))
    values = f"load {binding.matrices[0].tensor.name}"
    assert sum(s.end < read for s in spans if s.work.label == values) == stages


def test_every_work_is_done_once():
    plan = plan_of("difference", 64, rows=1024, columns=1024)
    binding, config, _ = source_of(plan)
    problem = problem_of(binding.kernel, binding.loop, config, refined=True)
    actors, counters = specialised(binding, problem, config, unit_prices(problem, store=5.0, rows=7.0), TILES)
    spans = simulated(actors, (VECTOR,), counters)
    for operation in problem.operations:
        many = 1 if operation.streaming else config.consumers
        first = operation.name.startswith("rescale")  # nothing to rescale yet
        found = [s for s in spans if s.work.label == operation.name]
        assert len(found) == config.residents * many * (TILES - first), operation.name
        assert {s.work.kind for s in found} == {kind_of(operation)}


@pytest.mark.parametrize("stages", [1, 2, 3, 4])
@pytest.mark.parametrize("programs", [1, 3])
def test_plain_programs_have_stages_less_one_tile_under_way(stages, programs):
    plan = plan_of("causal", 64, "float32", rows=1024, columns=1024)
    (kernel,) = plan.kernels
    config = TritonConfig(128, 64, 8, stages)
    problem = problem_of(kernel, kernel.loops[0], config, refined=True)
    clocks = {o.name: 1.0 if o.streaming else 1000.0 for o in problem.operations}
    actors, counters = plain(problem, config, Prices(clocks, apart=10.0), programs, TILES)
    spans = simulated(actors, (VECTOR,), counters)
    copied = [s.end for s in spans if s.work.lane.startswith("0 ") and s.work.unit == COPY]
    loads = sum(o.streaming for o in problem.operations)
    assert sum(end < 900 for end in copied) == loads * max(1, stages)
    order = [s.work.label for s in spans if s.work.lane.startswith("0 warpgroup 1") and s.work.step == 1]
    for edge in problem.edges:
        if not edge.distance and edge.before in order and edge.after in order:
            assert order.index(edge.before) < order.index(edge.after)
    assert Raise("0 begun") in actors[1] and all(isinstance(one, Work | Await | Raise) for a in actors for one in a)

"""No plan stores what reads nothing or runs a loop again for nothing: plans of the suites, and faults that are seen.

Records of variants and of models are held to it where their plans are made: test_variants.py, test_models.py.
"""

from dataclasses import replace

import pytest
import torch

from onepass.bench.scales import CPU
from onepass.bench.suites import cases
from onepass.compiler.optimize import optimize_all
from onepass.egraph.terms.ops import const, iota, reduce
from onepass.egraph.terms.term import Dim
from onepass.graph.trace import program_of
from onepass.lowering.plan.records import Loop, Plan
from onepass.translate.translate import translate
from tests.support.waste import wasted

LARGE = replace(CPU, rows=300)  # of an Evoformer: more than a tile holds
CASES = {f"{c.variant} {c.shape}": c for suite in ("variants", "beyond", "decode") for c in cases(suite, LARGE)}
FEWEST = {c.variant: name for name, c in reversed(CASES.items())}  # of each variant the first


def planned(function, inputs) -> Plan:
    return optimize_all(translate(program_of(function, *inputs)).results).plan


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", FEWEST.values())
def test_no_plan_of_a_suite_wastes(name):
    problem = CASES[name].make("cpu", torch.bfloat16)
    assert wasted(planned(problem.plain, problem.arguments)) == []


def attention(q, k, v):
    return torch.softmax(q @ k.mT, -1) @ v


@pytest.fixture(scope="module")
def plan():
    return planned(attention, [torch.randn(1, 2, 300, 16) for _ in range(3)])


def with_loops(plan, change) -> Plan:
    (kernel,) = plan.kernels
    return replace(plan, kernels=(replace(kernel, loops=tuple(map(change, kernel.loops))),))


def test_a_loop_for_each_place_of_another_dim_is_seen(plan):
    (kernel,) = plan.kernels
    assert wasted(plan) == []
    again = replace(plan, kernels=(replace(kernel, grid=(*kernel.grid, Dim("more", 7))),))
    assert wasted(again) == [f"{kernel.name}: the loop over {kernel.loops[0].dim} is the same for each more"]


def test_a_loop_inside_a_loop_is_seen(plan):
    def change(loop: Loop) -> Loop:
        (state,) = loop.accumulators
        inner = reduce("max", loop.dim, state.gauge)
        return replace(loop, accumulators=(replace(state, gauge=state.gauge - inner),))

    assert any("inside of" in line for line in wasted(with_loops(plan, change)))


def test_a_state_of_two_kernels_and_a_stored_count_are_seen(plan):
    (kernel,) = plan.kernels
    dim = kernel.loops[0].dim
    twice = replace(plan, kernels=(replace(kernel, name="earlier"), kernel))
    assert all("earlier has found" in line for line in wasted(twice)) and wasted(twice)
    (store,) = kernel.stores
    of = lambda term, order: replace(store, term=term, output=replace(store.output, name="part0"), order=order)
    count, table = of(reduce("sum", dim, const(1.0)), ()), of(iota(dim), (dim,))
    first = replace(kernel, name="first", grid=(), rows=None, loops=(), stores=(count, table))
    assert wasted(replace(plan, kernels=(first, kernel))) == ["first stores part0, which reads nothing"]

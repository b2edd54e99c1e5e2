"""Values whose totals are only added up share one total; the plan then means what it did, in each executor."""

import numpy as np
import pytest
import torch

from onepass.egraph.terms.evaluate import evaluate
from onepass.egraph.terms.ops import const, iota, load, mantissa, rescaled_sum, scale, sum_over
from onepass.egraph.terms.term import Dim, Tensor
from onepass.lowering.plan.kernel_config import TritonConfig
from onepass.lowering.plan.records import Store
from onepass.lowering.planning.planner import plan_stores
from onepass.lowering.tiled.executor import tiled_results
from onepass.lowering.triton.launch import Launcher

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
I, J, D, E = Dim("i", 40), Dim("j", 50), Dim("d", 16), Dim("e", 16)
SHAPES = {"q": (I, D), "k": (J, D), "v": (J, E), "w": (J, E)}
TENSORS = {name: Tensor(name, "float32", tuple(d.size for d in dims)) for name, dims in SHAPES.items()}
Q, K, V, W = (load(TENSORS[name], *map(iota, dims)) for name, dims in SHAPES.items())
SCORE = sum_over(D, Q * K)
ONE, TWO, THREE = (mantissa(rescaled_sum(J, SCORE, x)) for x in (V, SCORE * V, W))
TOTAL = rescaled_sum(J, SCORE, const(1.0))

# Results by name, and the number of different totals that are as wide as v.
CASES = {
    "two": ([(ONE + THREE) / mantissa(TOTAL)], 1),
    "three": ([(ONE + TWO + THREE) / mantissa(TOTAL)], 1),
    "scale of one of them": ([(ONE + THREE) / mantissa(TOTAL) + scale(rescaled_sum(J, SCORE, V))], 1),
    "one of them is a result": ([(ONE + THREE) / mantissa(TOTAL), ONE / mantissa(TOTAL)], 2),
    "the sum of two is a result": ([(ONE + THREE) / mantissa(TOTAL), (ONE + THREE + TWO) / mantissa(TOTAL)], 2),
    "a factor": ([(ONE + THREE * 2.0) / mantissa(TOTAL)], 2),
    "twice": ([(ONE + ONE + THREE) / mantissa(TOTAL)], 2),
}


def stores_of(terms):
    return [Store(term, Tensor(f"out{n}", "float32", (40, 16)), (I, E)) for n, term in enumerate(terms)]


@pytest.mark.parametrize("name", CASES)
def test_totals_that_are_only_added_up_are_one(name):
    terms, count = CASES[name]
    (kernel,) = plan_stores(stores_of(terms)).kernels
    (state,) = kernel.loops[0].accumulators
    wide = {total for value, total in zip(state.values, state.totals, strict=True) if E in value.dims}
    assert len(wide) == count
    assert all(number <= n and state.totals[number] == number for n, number in enumerate(state.totals))


@pytest.mark.sampled(10)
@pytest.mark.parametrize("run", ["tiled", "triton"])
@pytest.mark.parametrize("name", CASES)
def test_the_results_are_right(name, run):
    stores = stores_of(CASES[name][0])
    drawn = torch.Generator().manual_seed(5)
    inputs = {n: torch.randn(t.shape, generator=drawn) for n, t in TENSORS.items()}
    plan = plan_stores(stores)
    if run == "tiled":
        found = tiled_results(plan, inputs)
    else:
        launcher = Launcher(plan, TritonConfig(16, 16, 4, 1))
        found = [x.cpu() for x in launcher.results({n: x.to(DEVICE) for n, x in inputs.items()})]
    exact = {n: x.double().numpy() for n, x in inputs.items()}
    for store, result in zip(stores, found, strict=True):
        expected = evaluate(store.term, exact, store.order)
        np.testing.assert_allclose(result.numpy(), expected, rtol=2e-4, atol=2e-4)

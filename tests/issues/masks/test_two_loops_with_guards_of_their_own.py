"""Two loops over one dim with one block map: the second had none and failed, or took the first one's for its own."""

import pytest
import torch

from onepass.egraph.terms.ops import const, iota, le, load, logical_and, sum_over, where
from onepass.egraph.terms.term import Dim, Tensor
from onepass.lowering.masks import block_map
from onepass.lowering.plan.kernel_config import TritonConfig
from onepass.lowering.planning.planner import build_plan
from onepass.lowering.tiled.executor import run_tiled
from onepass.lowering.triton import launch
from onepass.lowering.triton.launch import Launcher, map_name

ROWS, COLUMNS = 40, 70
i, j = Dim("i", ROWS), Dim("j", COLUMNS)
x = load(Tensor("x", "float32", (ROWS, COLUMNS)), iota(i), iota(j))
one, other = (load(Tensor(name, "bool", (ROWS, COLUMNS)), iota(i), iota(j)) for name in ("one", "other"))
GUARDS = {
    "two maps": (one, other),
    "one map of two loops": (one, one),
    "the first alone": (one, None),
    "the second alone": (None, other),
    "positions first": (le(iota(j), iota(i)), logical_and(one, le(iota(j), iota(i) + 9))),
}


def summed(guard, body):
    return sum_over(j, body if guard is None else where(guard, body, const(0.0)))


@pytest.fixture
def case(request, monkeypatch):
    """The plan of Σ_j (x where the second guard holds) · (1 + Σ_j x where the first does), and its inputs."""
    monkeypatch.setattr(block_map, "MIN_TILES", 1)
    monkeypatch.setattr(launch, "pays", lambda *_: True)
    first, second = GUARDS[request.param]
    inner = const(1.0) + summed(first, x)
    term = summed(second, where(le(inner, const(0.0)), x, x * const(2.0)))
    torch.manual_seed(0)
    inputs = {"x": torch.randint(-9, 9, (ROWS, COLUMNS)).float()}
    inputs |= {name: torch.rand(ROWS, COLUMNS) < 0.02 for name in ("one", "other")}
    plan = build_plan(term, Tensor("out", "float32", (ROWS,)), (i,), held=1)
    return plan, {t.name: inputs[t.name] for t in plan.inputs}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("case", GUARDS, indirect=True)
def test_each_loop_follows_its_own_map(case):
    plan, inputs = case
    (kernel,) = plan.kernels
    maps = {map_name(kernel, loop): loop.map for loop in kernel.loops if loop.map is not None}
    assert len(kernel.loops) == 2 and len(maps) == len({loop.map for loop in kernel.loops} - {None}) > 0
    launcher = Launcher(plan, TritonConfig(16, 16, 4, 1))
    assert torch.equal(launcher(inputs, {}), run_tiled(plan, inputs))
    assert len(launcher._maps._kept) == len(maps)

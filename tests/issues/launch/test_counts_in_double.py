"""A count beside sums in double precision was shared out as float32: its report failed, and the region with it."""

import pytest
import torch

from onepass.api.backend import onepass_backend
from onepass.compiler.optimize import optimize_all
from onepass.graph.trace import program_of
from onepass.lowering.launch.split_loops import split_kernel
from onepass.lowering.tiled.executor import tiled_results
from onepass.report import records
from onepass.translate.translate import translate

pytestmark = pytest.mark.usefixtures("fresh")


def lifted(q, k, v):
    weights = torch.relu(q @ k.mT) + 0.5
    return weights / weights.sum(-1, keepdim=True) @ v


def inputs(keys, kind):
    torch.manual_seed(0)
    return [torch.randn(1, 2, n, 8, dtype=kind) for n in (1, keys, keys)]


@pytest.mark.parametrize("kind", [torch.float64, torch.float32])
def test_parts_of_a_count(kind):
    given = inputs(700, kind)
    plan = optimize_all(translate(program_of(lifted, *given)).results).plan
    (kernel,) = plan.kernels
    found = split_kernel(kernel)
    assert {s.output.dtype for s in found.first.stores} == {str(kind).removeprefix("torch.")}
    values = dict(zip((t.name for t in plan.inputs), given, strict=True))
    for part in (found.first, found.last):
        one = type(plan)((part,), part.inputs, tuple(s.output for s in part.stores))
        results = tiled_results(one, values, {found.chunk.size: 3})
        values |= dict(zip((s.output.name for s in part.stores), results, strict=True))
    exact = lifted(*(x.double() for x in given))
    assert (values["output"] - exact).abs().max() <= 20 * torch.finfo(kind).eps


def test_the_region_is_fused():
    given = inputs(4096, torch.float64)
    run = torch.compile(lifted, backend=onepass_backend, options={"strict": True, "inner": "eager", "libraries": False})
    torch.testing.assert_close(run(*given), lifted(*given), atol=1e-12, rtol=1e-12)
    assert records.reports()[-1].regions

"""A softmax over two axes was planned with heads as the rows of a kernel, whose sums had tiles of four dims.

Multiplied and summed, 262,144 elements are unrolled: its compilation took 418 seconds. Found by random programs on a
GPU. Such a sum is not written any more, and a plan that cannot be written gives way to one that can: here the states of
the whole softmax are stored. A tile of three dims was larger still, and a cheap one by its estimate: heads by all
columns by a width of 256. Its compilation took 179 seconds.
"""

import pytest
import torch

from onepass.api.backend import onepass_backend
from onepass.compiler import compiled_region
from onepass.compiler.options import Options
from onepass.graph.trace import program_of

pytestmark = pytest.mark.usefixtures("fresh")


def over_two_axes(q, k, v):
    s = q @ k.mT
    return s.flatten(2).softmax(-1).view_as(s) @ v


def inputs():
    torch.manual_seed(0)
    return [torch.randn(2, 2, n, 16) for n in (13, 33, 33)]


def test_no_tile_has_four_dims():
    plan = compiled_region.make(program_of(over_two_axes, *inputs()), Options()).plan
    assert len(plan.kernels) == 3
    assert "what is stored chosen because a kernel could not be written otherwise" in plan.notes
    assert [kernel.rows.name for kernel in plan.kernels if kernel.held and not kernel.loops] == ["i"]


def rotated(q, k, v, cos, sin, bias):
    half = lambda x: torch.cat([-x.chunk(2, -1)[1], x.chunk(2, -1)[0]], -1)
    q, k = (x * cos + half(x) * sin for x in (q, k))
    s = q @ k.mT * 0.3 + bias
    s = s + s.mean(-1, keepdim=True)
    e = torch.exp(s - s.amax(-1, keepdim=True))
    return (e @ v) / e.sum(-1, keepdim=True) * 0.5


def wide_inputs():
    torch.manual_seed(0)
    shapes = ((1, 3, 210, 256), (1, 3, 210, 256), (1, 3, 210, 96), (210, 256), (210, 256), (210,))
    return [torch.randn(shape, dtype=torch.float16) for shape in shapes]


def test_a_tile_has_no_heads_beside_columns_and_a_width():
    plan = compiled_region.make(program_of(rotated, *wide_inputs()), Options()).plan
    assert {kernel.rows.name for kernel in plan.kernels} == {"i"}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("executor", ["tiled", "triton"])
def test_it_is_right(executor):
    options = {"inner": "eager", "strict": True, "executor": executor}
    result = torch.compile(over_two_axes, backend=onepass_backend, options=options)(*inputs())
    exact = over_two_axes(*(x.double() for x in inputs()))
    torch.testing.assert_close(result.double(), exact, atol=1e-5, rtol=1e-5)

"""The largest score of one key was read as the score itself. A softmax over one key was then no softmax any more: with
equal bits, a prompt of one token was refused.
"""

import pytest
import torch

from onepass.api.backend import onepass_backend
from onepass.compiler.optimize import optimize_all
from onepass.graph.trace import program_of
from onepass.translate.translate import translate

pytestmark = pytest.mark.usefixtures("fresh")


def attention(q, k, v):
    return (q @ k.mT / 4).softmax(-1) @ v


def drawn(queries, keys, scale=1.0):
    torch.manual_seed(0)
    return [scale * torch.randn(2, 3, n, 16) for n in (queries, keys, keys)]


@pytest.mark.parametrize("queries", [1, 7])
def test_one_loop_over_one_key(queries):
    (kernel,) = optimize_all(translate(program_of(attention, *drawn(queries, 1))).results).plan.kernels
    (loop,) = kernel.loops
    assert loop.dim.size == 1 and loop.accumulators[0].gauge is not None


@pytest.mark.parametrize("scale", [1.0, 1e19])
@pytest.mark.parametrize("queries", [1, 7])
def test_the_result_is_the_value(queries, scale):
    given = drawn(queries, 1, scale)
    compiled = torch.compile(attention, backend=onepass_backend, options={"inner": "eager", "libraries": False})
    torch.testing.assert_close(compiled(*given).double(), attention(*(x.double() for x in given)))


def test_a_prompt_of_one_token_has_the_bits_of_a_longer_one():
    q, k, v = drawn(40, 40)
    options = {"inner": "eager", "invariant": True}
    run = torch.compile(attention, backend=onepass_backend, options=options, dynamic=True)
    whole = run(q[:, :, :9], k[:, :, :1], v[:, :, :1])
    assert torch.equal(run(q[:, :, 3:4], k[:, :, :1], v[:, :, :1]), whole[:, :, 3:4])

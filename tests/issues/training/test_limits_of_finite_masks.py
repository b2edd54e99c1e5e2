"""Masks by a large negative number, as models of transformers have them, limited the forward's loop only. Each loop of
the backward ran all tiles: twice the time under a causal mask. One layer of a Llama of 4096 tokens took 2.6 ms there.
"""

import pytest
import torch

import onepass
from onepass.runtime import training_operator

pytestmark = pytest.mark.usefixtures("fresh")


def scores(q, k):
    place = torch.arange(k.shape[-2])
    return (q @ k.mT) / 4, place[: q.shape[-2], None], place


def causal_sum(q, k, v):
    score, i, j = scores(q, k)
    mask = torch.where(j <= i, 0.0, torch.finfo(torch.bfloat16).min).to(q.dtype)
    return torch.softmax(score + mask, -1) @ v


def causal_choice(q, k, v):
    score, i, j = scores(q, k)
    return torch.softmax(score.masked_fill(j > i, -1e9), -1) @ v


def window(q, k, v):
    score, i, j = scores(q, k)
    return torch.softmax(torch.where((j <= i) & (i - j < 70), score, -1e9), -1) @ v


def future(q, k, v):
    """The last row keeps nothing: all weigh alike there."""
    score, i, j = scores(q, k)
    return torch.softmax(score.masked_fill(j <= i, -1e9), -1) @ v


LENGTH = 300


def inputs(dtype=torch.float64):
    torch.manual_seed(0)
    return [torch.randn(2, 3, LENGTH, 16, dtype=dtype, requires_grad=True) for _ in range(3)]


def gradients(function, given):
    result = function(*given)
    torch.manual_seed(1)
    return torch.autograd.grad(result, given, torch.randn(result.shape, dtype=result.dtype))


def compiled(function):
    return torch.compile(function, backend="onepass", options={"inner": "eager", "executor": "tiled"})


def loops():
    (runner,) = training_operator._BACKWARDS.values()
    return [loop for kernel in runner.found.plan.kernels for loop in kernel.loops]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("function", [causal_sum, causal_choice, window], ids=lambda f: f.__name__)
def test_loops_of_the_backward_have_limits(function):
    given = inputs()
    for found, right in zip(gradients(compiled(function), given), gradients(function, given), strict=True):
        torch.testing.assert_close(found, right)
    assert len(loops()) == 2 and all(loop.limits and loop.limits_only for loop in loops())


def test_where_a_row_may_keep_nothing_all_tiles_run():
    given = inputs()
    for found, right in zip(gradients(compiled(future), given), gradients(future, given), strict=True):
        torch.testing.assert_close(found, right)
    assert any(not loop.limits for loop in loops()), "of the gradient of the values"


@pytest.mark.sampled(1)
@pytest.mark.parametrize("function", [causal_sum, causal_choice, window], ids=lambda f: f.__name__)
def test_half_precision_is_as_near_as_eager(function):
    given = inputs(torch.bfloat16)
    exact = gradients(function, [x.detach().double().requires_grad_() for x in given])
    for found, own, right in zip(gradients(compiled(function), given), gradients(function, given), exact, strict=True):
        assert (found.double() - right).norm() <= 1.1 * (own.double() - right).norm()


def test_the_forward_saves_what_it_saved():
    """A shift and a logarithm: a row's largest score might be as low as the mask's number."""
    gradients(compiled(causal_sum), inputs(torch.bfloat16))
    (region,) = onepass.reports()[-1].regions
    assert "saves shift" in region.backward

"""The largest score of a row, by `s.max(-1).values` beside the weighted sum, stored all scores; so did that of a head.
In training nothing was fused, even for one that is detached, and kernels of plain Triton lost a NaN among the scores.
Now they are one kernel, as for `s.amax(-1)`.
"""

import math

import pytest
import torch

import onepass

pytestmark = pytest.mark.usefixtures("fresh")
ROWS, COLUMNS, WIDTH = 70, 300, 16


def scores(q, k):
    return q @ k.mT * 0.3


def by_value(q, k, v):
    s = scores(q, k)
    return s.softmax(-1) @ v, s.max(-1).values


def by_item(q, k, v):
    s = scores(q, k)
    least, _ = s.min(-1, keepdim=True)
    return s.softmax(-1) @ v, least


def with_places(q, k, v):
    s = scores(q, k)
    return s.softmax(-1) @ v, *s.max(-1)


def of_weights(q, k, v):
    p = scores(q, k).softmax(-1)
    return p @ v, p.max(-1).values


def masked(q, k, v):
    s = scores(q, k).masked_fill(torch.arange(COLUMNS) > torch.arange(ROWS)[:, None] - 3, -math.inf)
    return s.softmax(-1).nan_to_num(0.0) @ v, s.max(-1).values


def of_heads(q, k, v):
    """What QK-clip looks at."""
    s = scores(q, k)
    return s.softmax(-1) @ v, s.detach().amax((-2, -1))


def of_a_batch(q, k, v):
    s = scores(q, k)
    return s.softmax(-1) @ v, s.amin(dim=(0, 2, 3), keepdim=True)


def of_all(q, k, v):
    s = scores(q, k)
    return s.softmax(-1) @ v, s.max()


FUNCTIONS = (of_heads, of_a_batch, of_all, by_value, by_item, with_places, of_weights, masked)


def inputs(infinite=False):
    torch.manual_seed(0)
    q, k, v = torch.randn(2, 2, ROWS, WIDTH), torch.randn(2, 2, COLUMNS, WIDTH), torch.randn(2, 2, COLUMNS, WIDTH)
    if infinite:
        k[0, 0, 7], k[0, 1, 9] = math.nan, math.inf
    return q, k, v


@pytest.mark.parametrize("function", FUNCTIONS)
def test_no_scores_are_stored(function):
    report = onepass.explain(function, *inputs())
    (region,) = report.regions
    assert not report.refusals and all(math.prod(t.shape) < 4 * ROWS * COLUMNS for t in region.data.plan.outputs)


@pytest.mark.parametrize("infinite", [False, True])
@pytest.mark.parametrize("executor", ["tiled", "triton"])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_results_are_right(function, executor, infinite):
    if executor == "triton" and not torch.cuda.is_available():
        pytest.importorskip("triton")
    given = inputs(infinite)
    options = {"inner": "eager", "executor": executor, "libraries": False, "strict": True}
    run = torch.compile(function, backend=onepass.onepass_backend, options=options)
    with torch.no_grad():
        for found, wanted in zip(run(*given), function(*given), strict=True):
            assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
            torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5, equal_nan=True)


def of_rows_detached(q, k, v):
    s = scores(q, k)
    return s.softmax(-1) @ v, s.detach().max(-1).values


@pytest.mark.parametrize(
    "function, stored", [(of_heads, False), (of_rows_detached, False), (by_value, True), (of_all, True)]
)
def test_gradients_are_derived(function, stored):
    """A largest score that needs a gradient is taken by torch, of scores that the kernel stores."""
    given, exact = ([t.to(d).requires_grad_() for t in inputs()] for d in (torch.float32, torch.float64))
    (region,) = onepass.explain(function, *given).regions
    assert region.backward.startswith("derived")
    assert stored is any(math.prod(t.shape) >= 4 * ROWS * COLUMNS for t in region.data.plan.outputs)
    found = torch.compile(function, backend="onepass")(*given)
    wanted = function(*exact)
    assert [r.requires_grad for r in found] == [r.requires_grad for r in wanted]
    loss = lambda results: sum(r.sin().sum() for r in results if r.requires_grad)
    pairs = zip(torch.autograd.grad(loss(found), given), torch.autograd.grad(loss(wanted), exact), strict=True)
    for mine, truth in pairs:
        torch.testing.assert_close(mine.double(), truth, rtol=1e-4, atol=1e-4)

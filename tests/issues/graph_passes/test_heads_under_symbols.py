"""With symbolic sizes, torch has one symbol for equal sizes. With as many heads as head dims, the head dim was taken
for a number of heads and stayed symbolic, and all scores were stored. torch's attention with heads that share keys was
refused, since their number was a symbol.
"""

import pytest
import torch
import torch.nn.functional as F

import onepass


def attention(q, k, v):
    return torch.softmax(q @ k.mT / 4, -1) @ v


def by_einsum(q, k, v):
    weight = torch.softmax(torch.einsum("bihd,bjhd->bhij", q, k), -1)
    return torch.einsum("bhij,bjhe->bihe", weight, v)


def grouped(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)


HEADS, WIDTH = 16, 16
CASES = {  # function, shapes at a length
    "as many heads": (attention, lambda n: [(2, HEADS, n, WIDTH)] * 3),
    "as many heads, behind lengths": (by_einsum, lambda n: [(2, n, HEADS, WIDTH)] * 3),
    "as large a batch": (attention, lambda n: [(WIDTH, 3, n, WIDTH)] * 3),
    "heads that share keys": (grouped, lambda n: [(2, 8, n, WIDTH), (2, 2, n, WIDTH), (2, 2, n, WIDTH)]),
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("with_gradients", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_scores_are_not_stored(name, with_gradients):
    function, shapes = CASES[name]
    torch._dynamo.reset()
    before = len(onepass.reports())
    compiled = torch.compile(function, backend="onepass", dynamic=True, options={"inner": "eager"})
    for length in (40, 56):
        torch.manual_seed(length)
        given = [torch.randn(shape, dtype=torch.float64, requires_grad=with_gradients) for shape in shapes(length)]
        found, right = compiled(*given), function(*given)
        torch.testing.assert_close(found, right)
        if with_gradients:
            found, right = (torch.autograd.grad(x, given, torch.ones_like(x).cumsum(-1)) for x in (found, right))
            torch.testing.assert_close(found, right)
    (report,) = onepass.reports()[before:]
    assert not report.refusals and len(report.regions) == 1, "lengths stay symbols: one graph serves both"
    (region,) = report.regions
    assert len(region.kernels) == 1
    assert "derived, 3 kernels" in region.backward if with_gradients else "no gradient" in region.backward


def repeated(q, k, v):
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    return attention(q, k, v)


def repeated_by_expand(q, k, v):
    b, groups, n, width = k.shape
    of_a_group = q.shape[1] // groups
    k, v = (x[:, :, None].expand(b, groups, of_a_group, n, width).reshape(b, -1, n, width) for x in (k, v))
    return attention(q, k, v)


def repeated_for_sdpa(q, k, v):
    return F.scaled_dot_product_attention(q, *(x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v)))


def heads_behind_lengths(q, k, v):
    k, v = (x.transpose(1, 2).repeat_interleave(4, 2) for x in (k, v))
    return by_einsum(q.transpose(1, 2), k, v)


SHARING = [repeated, repeated_by_expand, repeated_for_sdpa, heads_behind_lengths]


def shared_keys(batch, length):
    torch.manual_seed(length)
    return [torch.randn(batch, heads, n, 16) for heads, n in ((8, 1), (2, length), (2, length))]


@pytest.mark.parametrize("function", SHARING)
def test_heads_that_share_keys_are_rows_of_a_tile(function):
    torch._dynamo.reset()
    before, options = len(onepass.reports()), {"inner": "eager", "libraries": False}
    compiled = torch.compile(function, backend="onepass", dynamic=True, options=options)
    for batch, length in ((3, 40), (5, 56)):
        given = shared_keys(batch, length)
        right = function(*(x.double() for x in given))
        torch.testing.assert_close(compiled(*given).double(), right, rtol=1e-5, atol=1e-5)
    (report,) = onepass.reports()[before:]
    (kernel,) = report.regions[0].kernels  # of one graph: the batch and the length are symbols still
    assert kernel.rows.endswith("_place")


def test_a_batch_that_shares_keys_stays_symbolic():
    def beams(q, k, v):
        return attention(q, *(x.repeat_interleave(q.shape[0] // x.shape[0], 0) for x in (k, v)))

    torch._dynamo.reset()
    before = len(onepass.reports())
    compiled = torch.compile(beams, backend="onepass", dynamic=True, options={"inner": "eager", "libraries": False})
    for batch in (3, 5):
        q, k, v = (torch.randn(n * batch, 7, 40, 16) for n in (4, 1, 1))
        torch.testing.assert_close(compiled(q, k, v), beams(q, k, v), rtol=1e-4, atol=1e-5)
    assert len(onepass.reports()) == before + 1

"""With symbolic sizes, torch has one symbol for equal sizes. With as many heads as head dims, the head dim was taken
for a number of heads and stayed symbolic, and all scores were stored. torch's attention with heads that share keys was
refused, since their number was a symbol. Queries that are viewed as groups of heads kept symbols, too, so that what
stands in front of them was no part of the kernel. A length along which keys are repeated became a number, so that each
length had a graph of its own. An axis that had another size in an earlier call was taken for one that the user marked:
heads and widths of a second layer kept symbols.
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


def viewed_as_groups(q, k, v):
    groups = q.view(q.shape[0], k.shape[1], q.shape[1] // k.shape[1], *q.shape[2:])
    return attention(groups, k[:, :, None], v[:, :, None]).flatten(1, 2)


def groups_by_einsum(q, k, v):
    groups = q.unflatten(1, (k.shape[1], -1))
    weight = torch.softmax(torch.einsum("bgmid,bgjd->bgmij", groups, k), -1)
    return torch.einsum("bgmij,bgje->bgmie", weight, v).flatten(1, 2)


SHARING = [repeated, repeated_by_expand, repeated_for_sdpa, heads_behind_lengths, viewed_as_groups, groups_by_einsum]


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
    assert kernel.rows.endswith("_place") or kernel.rows == "h", "members of a group"


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


def test_what_stands_in_front_of_groups_is_part_of_the_kernel():
    def pages(q, kc, vc, table):
        return viewed_as_groups(q, *(c[table].flatten(1, 2).transpose(1, 2) for c in (kc, vc)))

    torch._dynamo.reset()
    options = {"inner": "eager", "libraries": False, "fuse_loads": "always", "require": "all"}
    compiled = torch.compile(pages, backend="onepass", dynamic=True, options=options)
    for batch in (6, 3):  # as many sequences as heads, too
        given = torch.randn(batch, 6, 5, 16), *torch.randn(2, 9, 8, 2, 16), torch.randint(-9, 9, (batch, 4))
        right = pages(*(x.double() if x.is_floating_point() else x for x in given))
        torch.testing.assert_close(compiled(*given).double(), right, rtol=1e-5, atol=1e-5)
        (region,) = onepass.reports()[-1].regions
        assert all("computed in the kernel" in line for line in region.around) and region.around


def blocks_of_a_length(q, k, v, width):
    return attention(*(x.unflatten(2, (x.shape[2] // width, width)) for x in (q, k, v)))


def keys_twice(q, k, v, width):
    """Their length is no number of heads, though the second product has it in both operands: it is summed over."""
    return attention(q, *(x.repeat(1, 1, 2, 1) for x in (k, v)))


@pytest.mark.parametrize("function", [blocks_of_a_length, keys_twice])
def test_lengths_stay_symbolic(function):
    torch._dynamo.reset()
    before = len(onepass.reports())
    compiled = torch.compile(function, backend="onepass", dynamic=True, options={"inner": "eager", "libraries": False})
    for length in (40, 64):
        q, k, v = (torch.randn(2, 3, length, 16) for _ in range(3))
        torch.testing.assert_close(compiled(q, k, v, 8), function(q, k, v, 8), rtol=1e-4, atol=1e-5)
    assert len(onepass.reports()) == before + 1


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("function", [grouped, repeated])
def test_heads_and_widths_of_a_second_layer_are_numbers_too(function, dynamic):
    torch._dynamo.reset()
    before, options = len(onepass.reports()), {"inner": "eager", "libraries": False, "require": "all"}
    compiled = torch.compile(function, backend="onepass", dynamic=dynamic, options=options)
    for heads, groups, width in ((8, 2, 16), (12, 4, 16), (8, 4, 32)):
        torch.manual_seed(0)
        q, k, v = (torch.randn(3, n, 40, width) for n in (heads, groups, groups))
        right = function(q.double(), k.double(), v.double())
        torch.testing.assert_close(compiled(q, k, v).double(), right, rtol=1e-5, atol=1e-5)
    reports = onepass.reports()[before:]
    assert all(len(report.regions) == 1 and report.regions[0].passes[1] == 1 for report in reports)
    assert len(reports) == 3


def test_what_the_user_marked_stays_symbolic():
    q, k, v = (torch.randn(3, n, 40, 16) for n in (8, 8, 8))
    for x in (q, k, v):
        torch._dynamo.mark_dynamic(x, 1)
    torch._dynamo.reset()
    compiled = torch.compile(repeated, backend="onepass", options={"inner": "eager", "libraries": False})
    torch.testing.assert_close(compiled(q, k, v), repeated(q, k, v), rtol=1e-4, atol=1e-5)

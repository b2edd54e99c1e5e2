"""Of rows that are stored transposed the neighbours in memory lie along the length, which became a number as if it were
the width of rows; so did the length of (length, 1), and that of a region that is refused later. Every other length
compiled again, where torch.compile alone compiles once. Found by `make fuzz`, seeds 110000 to 110027.
"""

import pytest
import torch
import torch.nn.functional as F

import onepass

WIDTH = 16


def by_softmax(q, k, v):
    return torch.softmax(q @ k.mT / 4, -1) @ v


def by_exponentials(q, k, v):
    e = (q @ k.mT / 4).exp()
    return (e / e.sum(-1, keepdim=True)) @ v


def by_sigmoid(q, k, v):
    return torch.sigmoid(q @ k.mT) @ v


def of_halves(q, k, v):
    n = k.shape[-2] // 2
    return sum(torch.softmax(q @ k[..., at, :].mT, -1) @ v[..., at, :] for at in (slice(0, n), slice(n, None)))


def joined(q, k, v):
    return by_softmax(q, torch.cat([k, q], -2), torch.cat([v, q], -2))


def of_parts(q, k, v):
    return by_softmax(q.unflatten(-2, (3, -1)), k[..., None, :, :], v[..., None, :, :])



def by_torch(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, enable_gqa=True)


def refused(q, k, v):
    return (q @ k.mT).cumsum(-1).softmax(-1) @ v


def of_one_column(q, k, v):
    return torch.stack([q @ k[..., :1, :].mT] * 2).softmax(-1).mean(0) @ v[..., :1, :]


FUSED = (by_exponentials, by_sigmoid, of_halves, joined, of_parts, by_torch)


def stored(length: int, heads: int, transposed: str) -> list[torch.Tensor]:
    torch.manual_seed(length)
    plain = [torch.randn(3, heads, length + n, WIDTH, dtype=torch.float64) for n in (0, 6, 6)]
    return [x.mT.contiguous().mT if name in transposed else x for name, x in zip("qkv", plain)]


def compiled_once(function, heads: int, transposed: str) -> onepass.Report:
    torch._dynamo.reset()
    before = len(onepass.reports())
    run = torch.compile(function, backend="onepass", dynamic=True, options={"inner": "eager"})
    for length in (12, 33):
        given = stored(length, heads, transposed)
        torch.testing.assert_close(run(*given), function(*given), rtol=1e-9, atol=1e-9)
    (report,) = onepass.reports()[before:]  # each graph has one
    assert all(len(region.kernels) == 1 for region in report.regions), "the width is a number"
    return report


@pytest.mark.sampled(1)
@pytest.mark.parametrize("transposed", ["q", "qkv"])
@pytest.mark.parametrize("function", FUSED, ids=lambda f: f.__name__)
def test_another_length_is_no_other_graph(function, transposed):
    assert compiled_once(function, 2, transposed).regions


@pytest.mark.sampled(1)
@pytest.mark.parametrize("function", [refused, of_one_column], ids=lambda f: f.__name__)
def test_what_is_refused_leaves_no_guard(function):
    report = compiled_once(function, 2, "qkv")
    assert report.refusals and not report.regions


@pytest.mark.sampled(1)
@pytest.mark.parametrize("function", [by_softmax, by_sigmoid], ids=lambda f: f.__name__)
def test_as_many_heads_as_rows_are_wide(function):
    """One symbol stands for both: it is a width, and the length is none."""
    assert compiled_once(function, WIDTH, "q").regions


def of_many_heads(x, k):
    q = x.view(*x.shape[:-1], -1, k.shape[-1]).transpose(1, 2)
    return torch.softmax(q @ k[:, None].mT, -1) @ k[:, None]


def test_symbols_of_widths_are_no_lengths():
    """The number of heads is s // d here, and the width is s // (s // d): s becomes a number, lengths do not."""
    torch._dynamo.reset()
    before = len(onepass.reports())
    run = torch.compile(of_many_heads, backend="onepass", dynamic=True, options={"inner": "eager"})
    for length in (12, 33):
        x, _, k = (one[:, 0] for one in stored(length, 1, ""))
        x = torch.cat([x, -x], -1).mT.contiguous().mT
        torch.testing.assert_close(run(x, k), of_many_heads(x, k), rtol=1e-9, atol=1e-9)
    (report,) = onepass.reports()[before:]
    assert [len(region.kernels) for region in report.regions] == [1]

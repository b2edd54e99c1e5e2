"""Heads counted by the width of another input: 12 // width is 0 with the values that the check of plans gave a width.

Such a plan was not read back, so nothing was fused; its estimate divided by zero.
"""

import pytest
import torch

import onepass
from onepass.egraph.terms.sizes import UnknownSize, value_of

pytestmark = pytest.mark.usefixtures("fresh")
SIZES = [(3, 36, 4), (2, 20, 4)]  # sequences, tokens, width of a head


def by_width(q, k, v, cos):
    heads = lambda x: x.view(x.shape[0], x.shape[1], -1, cos.shape[-1]).transpose(1, 2)
    return torch.softmax(heads(q) * cos @ heads(k).mT * 0.3, -1) @ heads(v)


def inputs(sequences, tokens, width):
    torch.manual_seed(0)
    return [*(torch.randn(sequences, tokens, 12) for _ in "qkv"), torch.randn(tokens, width)]


def compiled():
    return torch.compile(
        by_width, backend=onepass.onepass_backend, dynamic=True,
        options={"strict": True, "inner": "eager", "executor": "tiled"},
    )  # fmt: skip


def test_a_size_that_divides_by_zero_has_no_value():
    with pytest.raises(UnknownSize, match="s0//s1"):
        value_of("s0//s1", {"s0": 3, "s1": 0})


def test_it_is_fused_and_computes_the_right_thing():
    run = compiled()
    for sizes in SIZES:
        given = inputs(*sizes)
        wanted = by_width(*(x.double() for x in given))
        torch.testing.assert_close(run(*given).double(), wanted, rtol=1e-4, atol=1e-5)
    (report,) = onepass.reports()
    assert report.regions and not report.refusals and not report.failures

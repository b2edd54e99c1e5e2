"""Gradients through `onepass.state` were NaN where a row sees no key of a part, as in a causal sequence that is split.

`merge_over` took a dim beyond the axes for another one: 5 of four axes was 1.
"""

import math

import pytest
import torch

import onepass

KEYS, HALF = 40, 24
FORMS = {"a boolean mask": lambda kept: kept, "an added mask": lambda kept: torch.where(kept, 0.0, -math.inf).double()}


def causal(first, last):
    return torch.arange(first, last) <= torch.arange(KEYS)[:, None]


def gradients(function, given):
    leaves = [x.clone().requires_grad_() for x in given]
    return torch.autograd.grad(function(*leaves).square().sum(), leaves)


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("stacked", [False, True])
def test_a_causal_sequence_that_is_split(form, stacked):
    torch.manual_seed(0)
    given = [torch.randn(2, KEYS, 8, dtype=torch.float64) for _ in range(3)]

    def in_parts(q, k, v):
        cut = KEYS // 2 if stacked else HALF
        parts = [
            onepass.state(q, k[:, a:b], v[:, a:b], mask=FORMS[form](causal(a, b))) for a, b in ((0, cut), (cut, KEYS))
        ]
        if stacked:
            return onepass.merge_over(onepass.State(*map(torch.stack, zip(*parts, strict=True))), 0).output
        return onepass.merge(*parts).output

    def whole(q, k, v):
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    right = gradients(whole, given)
    fast = torch.compile(in_parts, backend="onepass", options={"inner": "eager", "strict": True})
    for function in (in_parts, fast):
        torch.testing.assert_close(function(*given), whole(*given), rtol=1e-9, atol=1e-9)
        for mine, own in zip(gradients(function, given), right, strict=True):
            torch.testing.assert_close(mine, own, rtol=1e-8, atol=1e-8)


def test_hidden_values_do_not_reach_a_row_without_keys():
    q, k, v = (torch.randn(2, 5, 8) for _ in range(3))
    v[:, 3] = math.nan
    kept = torch.ones(5, 5, dtype=torch.bool)
    kept[1] = False
    assert (onepass.state(q, k, v, mask=kept).output[:, 1] == 0).all()


@pytest.mark.parametrize("dim", [4, 5, -5])
def test_a_dim_that_is_no_axis_is_refused(dim):
    q, k, v = (torch.randn(2, 3, 5, 8) for _ in range(3))
    with pytest.raises(ValueError, match="no axis"):
        onepass.merge_over(onepass.state(q, k, v), dim)

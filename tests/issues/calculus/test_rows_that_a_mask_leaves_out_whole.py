"""A mask that leaves out whole rows, heads or samples made gradients NaN where eager's are 0.

Beside such a mask a gradient's exponential has no mask of its own, and the saved logarithm of a row without elements
was -∞. It is ∞ now, so that exp(s - ∞) is 0.
"""

import pytest
import torch
from torch.nn import functional as F

import onepass
from tests.support.backwards import hold_gradients

pytestmark = pytest.mark.usefixtures("fresh")
MASKS = {
    "rows": torch.arange(20).view(1, 1, 20, 1) < torch.tensor([7, 20]).view(2, 1, 1, 1),
    "heads": torch.tensor([True, False, True]).view(1, 3, 1, 1),
    "samples": torch.tensor([False, True]).view(2, 1, 1, 1),
}


def library(q, k, v, keep):
    return F.scaled_dot_product_attention(q, k, v, attn_mask=keep)


def cleaned(q, k, v, keep):
    return torch.nan_to_num((q @ k.mT).masked_fill(~keep, -torch.inf).softmax(-1)) @ v


def masked_again(q, k, v, keep):
    return (q @ k.mT).masked_fill(~keep, -torch.inf).softmax(-1).masked_fill(~keep, 0) @ v


def inputs(keep):
    torch.manual_seed(0)
    return [torch.randn(2, 3, n, 8) for n in (20, 24, 24)] + [MASKS[keep]]


def saved_logarithms(function, given):
    (region,) = onepass.explain(function, *given, gradients=True).regions
    return [kept.form for kept in region.gradients.saved if kept.name.startswith("log")]


@pytest.mark.parametrize("function", [library, cleaned, masked_again])
def test_the_logarithm_of_no_elements_is_infinite(function):
    q, k, v, keep = inputs("rows")
    (form,) = saved_logarithms(function, [*(x.requires_grad_() for x in (q, k, v)), keep])
    assert "= -∞, ∞, " in form, form


def test_the_logarithm_is_plain_where_a_row_keeps_what_its_mask_keeps():
    q, k, v, _ = inputs("rows")
    keep = torch.rand(2, 1, 20, 24) < 0.5
    (form,) = saved_logarithms(library, [*(x.requires_grad_() for x in (q, k, v)), keep])
    assert "∞, ∞" not in form, form


@pytest.mark.sampled(4)
@pytest.mark.parametrize("executor", ["tiled", "triton"])
@pytest.mark.parametrize("keep", MASKS)
@pytest.mark.parametrize("function", [library, cleaned, masked_again])
def test_gradients_are_those_of_float64(function, keep, executor):
    hold_gradients(function, inputs(keep), executor)

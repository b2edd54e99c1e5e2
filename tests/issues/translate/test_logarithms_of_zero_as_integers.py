"""T5 puts a distance of 0 in a bucket by its logarithm, minus infinity as an integer, and takes another branch then.
The translation gave up on that integer, and the region stayed as written, with a traceback."""

import math

import pytest
import torch

import onepass
from onepass.api.backend import onepass_backend
from onepass.egraph.terms.ops import const
from onepass.translate.registry import convert

pytestmark = pytest.mark.usefixtures("fresh")
SMALL = [-math.inf, -1e30, -(2.0**63)]
LARGE = [math.inf, math.nan, 1e30, 2.0**63]  # devices have other integers for these


def _buckets(length):
    places = torch.arange(length)
    distance = (places[:, None] - places).clamp(min=0)
    far = 8 + (torch.log(distance.float() / 8) / math.log(4) * 8).to(torch.long)
    return torch.where(distance < 8, distance, torch.min(far, torch.full_like(far, 15)))


def near(q, k, v):
    """Each query reads the keys of a few buckets."""
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=_buckets(q.shape[-2]) < 12)


@pytest.mark.parametrize("value", SMALL)
def test_it_is_the_least_integer(value):
    assert convert(const(value), "int64") is const(-(2**63)) and torch.tensor(value).long() == -(2**63)


@pytest.mark.parametrize("value", [-(2.0**63), 2.0**62, -1.5, 0.0])
def test_what_fits_is_a_literal(value):
    assert convert(const(value), "int64") is const(int(value))


def test_buckets_by_logarithms_are_fused():
    torch.manual_seed(0)
    given = [torch.randn(1, 2, 40, 16, requires_grad=True) for _ in range(3)]
    options = {"libraries": False, "strict": True}
    found = torch.compile(near, backend=onepass_backend, options=options)(*given)
    assert onepass.reports()[-1].regions, onepass.reports()[-1]
    exact = near(*(x.double() for x in given))
    torch.testing.assert_close(found.double(), exact, rtol=1e-5, atol=1e-5)
    cotangent = torch.randn(found.shape)
    wanted = torch.autograd.grad(exact, given, cotangent.double())
    for mine, other in zip(torch.autograd.grad(found, given, cotangent), wanted, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("value", SMALL + LARGE)
def test_a_result_that_depends_on_it_is_eagers(value):
    def gated(q, k, v):
        return (q @ k.mT * (torch.full((20, 20), value).long() > 3)).softmax(-1) @ v

    torch.manual_seed(0)
    given = [torch.randn(2, 20, 16) for _ in range(3)]
    found = torch.compile(gated, backend=onepass_backend, options={"libraries": False})(*given)
    assert bool(onepass.reports()[-1].regions) is (value in SMALL), onepass.reports()[-1]
    torch.testing.assert_close(found.double(), gated(*(x.double() for x in given)), rtol=1e-5, atol=1e-5)

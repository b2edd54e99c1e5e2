"""Sums and products that no order changes: each row alone, beside others, in another place, and with hostile values."""

from math import inf, nan

import pytest
import torch

from onepass.lowering.tiled.exact_sums import MAX_TERMS, exact_product, exact_sum
from onepass.lowering.tiled.tile_ops import _POINTWISE, BY_PLACE, apply

APART = frozenset({0, 1, 3})  # the batch, rows and keys; along axis 2 is the width


def product(x, y, axis):
    """Σ x · y for x over (batch, rows, width or keys) and y over the same and columns, in float64 of any order."""
    return exact_product(x, y, axis, APART, lambda a, b: (a * b).sum(axis, keepdim=True))


def scores(q, k):
    """q [batch, rows, width], k [batch, keys, width]."""
    return product(q[:, :, :, None], k.mT[:, None], 2)[:, :, 0]


def sums(p, v):
    """p [batch, rows, keys], v [batch, keys, width]: with an axis for the width before that of keys."""
    return product(p[:, :, None, :], v.mT[:, None], 3)[..., 0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_row_has_the_bits_that_it_has_alone(dtype):
    torch.manual_seed(0)
    make = lambda n: torch.randn(3, n, 24, dtype=dtype) * torch.logspace(-6, 6, n, dtype=dtype)[:, None]
    q, k, v = map(make, (17, 40, 40))
    found = scores(q, k)
    weights = torch.softmax(found, -1)
    weights[:, :, 25:] = 0  # keys that no row sees
    mixed = sums(weights, v)
    for row in (0, 5, 16):
        assert torch.equal(scores(q[1:2, row : row + 1], k[1:2, 3:19]), found[1:2, row : row + 1, 3:19])
        alone = sums(weights[1:2, row : row + 1, :25], v[1:2, :25])
        assert torch.equal(alone, mixed[1:2, row : row + 1])
    noise = v.clone()
    noise[:, 25:] *= 1e9
    assert torch.equal(sums(weights, noise), mixed)


def test_keys_without_values_may_have_any_weights():
    """Their weights do not count in a row's power of two: a mask may stand before the values, or before the weights."""
    torch.manual_seed(0)
    weights, v = torch.rand(3, 17, 40) * 1e-3, torch.randn(3, 40, 24)
    v[:, 25:] = 0
    noise = weights.clone()
    noise[:, :, 25:] = 1e6 * torch.rand(3, 17, 15)
    assert torch.equal(sums(noise, v), sums(weights[:, :, :25], v[:, :25]))
    assert torch.equal(sums(noise, v), sums(weights, v))


def test_it_is_closer_to_the_sum_than_a_matrix_product_is():
    torch.manual_seed(0)
    q, k = torch.randn(2, 64, 128), torch.randn(2, 300, 128)
    exact = q.double() @ k.double().mT
    error, eager = ((found - exact).abs().max() for found in (scores(q, k), q @ k.mT))
    assert error < eager
    torch.testing.assert_close(scores(q, k), exact.float(), rtol=1e-6, atol=1e-6)


def test_hostile_values_give_what_a_sum_gives():
    q = torch.tensor([[[inf, 1.0], [nan, 1.0], [3e38, 3e38], [1e-40, 0.0], [0.0, 0.0], [2.0, -inf]]])
    k = torch.tensor([[[1.0, 1.0], [0.0, inf], [-1.0, 1e-45], [3e38, -3e38]]])
    expected = (q.double()[:, :, None] * k.double()[:, None]).sum(-1).float()
    torch.testing.assert_close(scores(q, k), expected, equal_nan=True)
    torch.testing.assert_close(exact_sum(q, 2)[..., 0], q.double().sum(-1).float(), equal_nan=True)


def test_a_sum_of_many_terms_does_not_depend_on_their_order():
    torch.manual_seed(0)
    x = torch.randn(3, MAX_TERMS) * torch.logspace(-8, 8, MAX_TERMS)
    assert torch.equal(exact_sum(x, 1), exact_sum(x[:, torch.randperm(MAX_TERMS)], 1))
    long = torch.randn(2, 2 * MAX_TERMS + 5)
    torch.testing.assert_close(exact_sum(long, 1)[:, 0], long.double().sum(1).float(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", _POINTWISE)
def test_a_function_gives_an_element_the_same_bits_in_each_place(name, dtype):
    torch.manual_seed(0)
    count = 2 if name in ("add", "sub", "mul", "div", "pow") else 1
    args = [(torch.rand(1031, dtype=dtype) * 4 + 0.01) for _ in range(count)]
    found = apply(name, [x.clone() for x in args], [False] * count, invariant=True)
    for start, stop in ((0, 1), (3, 20), (500, 1031), (1, 1030)):
        part = apply(name, [x[start:stop].clone() for x in args], [False] * count, invariant=True)
        assert torch.equal(part, found[start:stop])
    turned = apply(name, [x[:1024].view(32, 32).T for x in args], [False] * count, invariant=True)
    assert torch.equal(turned.T.flatten(), found[:1024])


def test_the_functions_that_are_computed_one_by_one_need_it():
    torch.manual_seed(0)
    x = torch.rand(1031) * 4 + 0.01
    found = {name: apply(name, [x, x][: 1 + (name == "pow")], [False] * 2) for name in BY_PLACE}
    single = {name: apply(name, [x, x][: 1 + (name == "pow")], [False] * 2, invariant=True) for name in BY_PLACE}
    assert any(not torch.equal(found[name], single[name]) for name in BY_PLACE)
    for name in BY_PLACE:
        torch.testing.assert_close(found[name], single[name])

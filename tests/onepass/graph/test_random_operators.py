"""The operations that draw by a seed: the numbers of the generator, by place; gradients; what a compiler is told."""

import math

import pytest
import torch

from onepass.egraph.terms import philox
from onepass.graph.random_operators import least_kept, scale_of_kept

SEED = torch.tensor([2**62 + 5, 2**61 + 3])


@pytest.mark.parametrize("shape", [(), (5,), (3, 7), (2, 3, 4, 9), (1, 1), (4, 1), (2, 20, 37)])
def test_a_number_is_that_of_its_matrix_row_and_column(shape):
    found = torch.ops.onepass.uniform_numbers(shape, SEED)
    assert found.shape == shape and found.dtype == torch.float32
    *_, rows, columns = (1, 1, *shape)[min(len(shape), 2) :]
    places = [(k // columns // rows, k // columns % rows, k % columns) for k in range(math.prod(shape))]
    assert found.flatten().double().tolist() == [philox.uniform(*SEED.tolist(), *place) for place in places]


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 3)])
def test_no_places_have_no_numbers(shape):
    assert torch.ops.onepass.uniform_numbers(shape, SEED).shape == shape


def test_a_share_is_kept_and_scaled():
    x = torch.rand(64, 64, dtype=torch.float64) + 1
    found = torch.ops.onepass.dropout(x, 0.25, SEED)
    kept = torch.ops.onepass.uniform_numbers(x.shape, SEED) >= 0.25
    torch.testing.assert_close(found, torch.where(kept, x / 0.75, 0.0))


def test_what_is_kept_does_not_depend_on_strides_or_dtype():
    x = torch.ones(6, 8)
    kept = torch.ops.onepass.dropout(x, 0.5, SEED) != 0
    for other in (x.t().contiguous().t(), x.half(), x.bfloat16(), x.double()):
        assert torch.equal(torch.ops.onepass.dropout(other, 0.5, SEED) != 0, kept)


@pytest.mark.parametrize("p", [2.0**-60, 1e-9, 0.1, 0.5, 0.7, 1 - 2.0**-24, 1 - 2.0**-30, 1.0])
def test_the_least_number_that_is_kept_is_one_that_is_drawn(p):
    """So that float32 and float64 compare with it alike. A share is rounded up, to a multiple of 2^-24."""
    least = least_kept(p)
    assert least == torch.tensor(least).item() and (least / philox.UNIT).is_integer()
    assert 0 <= least - p < philox.UNIT
    assert scale_of_kept(p) == (0 if p == 1 else 1 / (1 - p))


def test_all_is_dropped_of_everything():
    x = torch.ones(4, 4, requires_grad=True)
    found = torch.ops.onepass.dropout(x, 1.0, SEED)
    assert not found.any() and not torch.autograd.grad(found.sum(), x)[0].any()


def test_a_dropped_nan_is_nan_as_in_torch():
    x = torch.full((8, 8), math.nan)
    assert torch.ops.onepass.dropout(x, 0.5, SEED).isnan().all()
    assert torch.nn.functional.dropout(x, 0.5).isnan().all()


def test_gradients():
    x = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: torch.ops.onepass.dropout(x, 0.4, SEED), x)
    assert torch.autograd.gradgradcheck(lambda x: torch.ops.onepass.dropout(x, 0.4, SEED), x)
    q, k, v = (torch.randn(1, 2, 4, 3, dtype=torch.float64, requires_grad=True) for _ in range(3))
    call = lambda *x: torch.ops.onepass.scaled_dot_product_attention(*x, None, 0.4, True, None, False, SEED)
    assert torch.autograd.gradcheck(call, (q, k, v))


def test_a_compiler_is_told_the_shape():
    torch.library.opcheck(torch.ops.onepass.uniform_numbers.default, ((3, 5), SEED))
    torch.library.opcheck(torch.ops.onepass.dropout.default, (torch.randn(3, 5, requires_grad=True), 0.5, SEED))


def test_more_than_2_to_the_32_places_have_numbers_of_their_own():
    """Matrices, rows and columns have a word of the counter each."""
    matrices = torch.tensor([0, 1, 2**31])[:, None, None]
    rows, columns = torch.tensor([[1], [1 + 2**20], [1 + 2**31]]), torch.tensor([[3, 3 + 2**20, 3 + 2**31]])
    assert len(philox.random_bits(*SEED, matrices, rows, columns).unique()) == 27

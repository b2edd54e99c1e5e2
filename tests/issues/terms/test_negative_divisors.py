"""A quotient or rest by a negative literal had the bounds of a positive one: whole masks became constants. And numbers
that a call gives, which plans take as sizes, may be below zero."""

import pytest
import torch

import onepass
from onepass.egraph.terms.affine import bounds
from onepass.egraph.terms.evaluate import evaluate
from onepass.egraph.terms.index_simplify import simplify_index
from onepass.egraph.terms.ops import const, iota, make
from onepass.egraph.terms.term import Dim
from onepass.lowering.analysis.value_bounds import interval

I, J = Dim("i", 7), Dim("j", 9)
LENGTH = 40
MASKS = {
    "remainder": lambda far: far % -5 > -3,
    "quotient": lambda far: far // -5 > 3,
    "torch.remainder": lambda far: torch.remainder(far, -3) == -1,
    "floor_divide": lambda far: torch.floor_divide(far, -7) <= 1,
    "floor mode": lambda far: torch.div(far, -4, rounding_mode="floor") < 0,
    "of a quotient": lambda far: far // -5 % -3 == -2,
}


@pytest.mark.parametrize("op", ["floordiv", "mod"])
@pytest.mark.parametrize("divisor", [-12, -7, -2, -1, 1, 5])
def test_bounds_and_normal_form_hold_for_every_divisor(op, divisor):
    for x in (iota(I) - iota(J), iota(J) * const(5) - const(40), const(3) - iota(I) * const(10)):
        term = make(op, (x, const(divisor)))
        values, normal = evaluate(term, {}), simplify_index(term)
        assert (evaluate(normal, {}, sorted(term.dims)) == values).all()
        for low, high in (bounds(term), bounds(normal), interval(term)):
            assert low <= values.min() and values.max() <= high


def attend(mask):
    def function(q, k, v, *more):
        far = torch.arange(LENGTH)[:, None] - torch.arange(LENGTH)
        return (q @ k.mT).masked_fill(mask(far, *more), -1e4).softmax(-1) @ v

    return function


def inputs():
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(1, 2, LENGTH, 16, generator=generator) for _ in range(3)]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", MASKS)
def test_the_mask_is_what_eager_makes(name):
    function = attend(MASKS[name])
    compiled = torch.compile(function, backend="onepass", options={"executor": "tiled", "strict": True})
    exact = function(*(x.double() for x in inputs()))
    torch.testing.assert_close(compiled(*inputs()).double(), exact, atol=1e-5, rtol=1e-5)
    (region,) = onepass.reports()[-1].regions
    assert "//" in region.captured or "%" in region.captured  # a constant would hold neither


def test_a_number_below_zero_is_no_size():
    function = attend(lambda far, least: torch.arange(LENGTH) + least < 0)
    options = {"executor": "tiled", "strict": True}
    compiled = torch.compile(function, backend="onepass", dynamic=True, options=options)
    for number in (7, -5):
        exact = function(*(x.double() for x in inputs()), number)
        torch.testing.assert_close(compiled(*inputs(), number).double(), exact, atol=1e-5, rtol=1e-5)
        notes = onepass.reports()[-1].regions[0].notes
        assert any("negative" in note for note in notes) == (number < 0)

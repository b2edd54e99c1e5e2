"""What a condition leaves of index arithmetic: the same values where it holds, and no place outside of an axis."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from onepass.egraph.terms.evaluate import evaluate
from onepass.egraph.terms.index_conditional import simplify_under_conditions
from onepass.egraph.terms.index_simplify import simplify_index
from onepass.egraph.terms.ops import const, iota, load, make
from onepass.egraph.terms.printing import show
from onepass.egraph.terms.term import Dim, Tensor
from onepass.egraph.terms.traversal import subterms
from onepass.lowering.tiled.executor import tiled_results
from onepass.lowering.triton.launch import Launcher
from tests.lowering.planning.test_inline_producers import named, planned

I, J = Dim("i", 7), Dim("j", 9)
LENGTH = 11
SMALL = st.integers(-8, 8)


def divisions(term):
    return [n for n in subterms(term) if n.op in ("floordiv", "mod")]


def shifted(condition, steps=(7, 1), divisor=8, start=7):
    """What the relative shift makes: a place of an axis by a quotient, of another by a rest."""
    flat = iota(I) * const(steps[0]) + iota(J) * const(steps[1]) + const(start)
    x = Tensor("x", "float32", (LENGTH, LENGTH))
    clamped = lambda place: make("maximum", (make("minimum", (place, const(LENGTH - 1))), const(0)))
    read = load(x, clamped(flat // const(divisor)), clamped(make("mod", (flat, const(divisor)))))
    return make("where", (condition, read, const(-math.inf)))


CONDITIONS = st.lists(
    st.builds(
        lambda sign, c, strict: make(
            "lt" if strict else "le", tuple((iota(I) - iota(J), const(c))[:: 1 if sign else -1])
        ),
        st.booleans(),
        SMALL,
        st.booleans(),
    ),
    min_size=1,
    max_size=3,
)


@pytest.mark.slow
@settings(max_examples=400)
@given(CONDITIONS, st.tuples(st.integers(-2, 2), st.integers(-2, 2)), st.integers(1, 12), st.integers(-20, 20))
def test_the_same_where_the_condition_holds(parts, near, divisor, start):
    condition = parts[0]
    for part in parts[1:]:
        condition = make("and", (condition, part))
    before = simplify_index(shifted(condition, (divisor + near[0], near[1]), divisor, start))
    after = simplify_under_conditions(before)
    x = np.random.default_rng(start + 20).standard_normal((LENGTH, LENGTH))
    assert np.array_equal(evaluate(before, {"x": x}, [I, J]), evaluate(after, {"x": x}, [I, J]))
    for read in (n for n in subterms(after) if n.op == "load"):
        for place in read.args:
            found = evaluate(place, {}, [I, J])
            assert found.min() >= 0 and found.max() < LENGTH


def test_a_shifted_row_is_a_difference_under_a_causal_mask():
    rows = Dim("j", 7)
    read = lambda flat: load(Tensor("x", "float32", (7, 8)), flat // const(8), make("mod", (flat, const(8))))
    causal = make("le", (iota(rows), iota(I)))
    term = simplify_index(make("where", (causal, read(iota(I) * const(7) + iota(rows) + const(7)), const(0.0))))
    assert divisions(term)
    assert show(simplify_under_conditions(term)) == "where(j ≤ i, x[i, minimum(j - i + 7, 7)], 0)"


def causal_shift(q, k, v, r):
    """Music Transformer's: a vector for every distance back."""
    apart = torch.nn.functional.pad(q @ r.mT, (1, 0))
    b, h, n, places = apart.shape
    scores = q @ k.mT + apart.view(b, h, places, n)[:, :, 1:]
    return torch.softmax(scores.masked_fill(torch.ones(n, n, dtype=torch.bool).triu(1), -math.inf), -1) @ v


def windowed_shift(q, k, v, r):
    """Under a condition in two parts, one of them data."""
    apart = torch.nn.functional.pad(q @ r.mT, (1, 0))
    b, h, n, places = apart.shape
    i, j = torch.arange(n)[:, None], torch.arange(n)
    keep = (j <= i) & (i - j < 9) & (v[:, :, None, :, 0] > -1)
    scores = q @ k.mT + apart.view(b, h, places, n)[:, :, 1:]
    return torch.softmax(torch.where(keep, scores, -math.inf), -1) @ v


@pytest.mark.sampled(1)
@pytest.mark.parametrize("length", [1, 2, 40, 130])
@pytest.mark.parametrize("function", [causal_shift, windowed_shift])
def test_it_takes_one_kernel_and_no_memory(function, length):
    torch.manual_seed(length)
    given = [*(torch.randn(2, 2, length, 16) for _ in range(3)), torch.randn(2, length, 16)]
    given[2][..., 0].abs_()
    plan = planned(function, given)
    assert len(plan.kernels) == 1
    values, exact = named(function, plan, given), function(*(x.double() for x in given))
    for (result,) in (tiled_results(plan, values), Launcher(plan).results(values)):
        torch.testing.assert_close(result.double(), exact, atol=2e-5, rtol=2e-5)

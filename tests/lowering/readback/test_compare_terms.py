"""Terms that are equal with other dims, sums along diagonals among them, are found equal; others are not."""

import pytest

from onepass.egraph.terms.ops import const, eq, exp, iota, load, log, sum_over, where
from onepass.egraph.terms.term import Dim, Tensor
from onepass.lowering.plan.records import Plan
from onepass.lowering.readback.canonical_terms import Canonical
from onepass.lowering.readback.compare_terms import PartsThatDiffer, demand_equal
from onepass.lowering.readback.plan_meaning import NotReadBack
from onepass.lowering.readback.sample_points import Points
from onepass.lowering.readback.sampled_values import SampledValues

I, J, R = Dim("i", 1000), Dim("j", 1000), Dim("r", 1999)
D, A, B = Dim("d", 64), Dim("a", 8), Dim("b", 8)
X, Y, W = Tensor("x", "float32", (1000, 64)), Tensor("y", "float32", (1000, 1000)), Tensor("w", "float32", (1999,))
x = lambda index: load(X, iota(I), index)
pair = lambda factor: load(Y, iota(I), iota(J)) * factor
place = iota(J) - iota(I) + const(999)
FEW = Dim("n", "12//s0")  # without an index where s0 is 48
few = lambda factor: load(Tensor("z", "float32", ("12//s0",)), iota(FEW)) * const(factor)
along = lambda where_it_is: where(eq(where_it_is, iota(R)), pair(load(W, iota(R))), const(0.0))
NOTHING = Plan((), (), ())
PAIRS = {
    "a sum that is mostly empty": (sum_over(FEW, exp(few(2.0))), sum_over(FEW, exp(few(1.0)) * exp(few(1.0)))),
    "a flattened dim": (sum_over(D, exp(x(iota(D)))), sum_over(A, sum_over(B, exp(x(iota(A) * const(8) + iota(B)))))),
    "sums in another order": (sum_over(I, sum_over(J, pair(const(2.0)))), sum_over(J, sum_over(I, pair(const(2.0))))),
    "a sum along diagonals": (
        sum_over(J, sum_over(I, pair(load(W, place)))),
        sum_over(R, sum_over(J, sum_over(I, along(place)))),
    ),
}
OTHERS = {
    "another stride": (PAIRS["a flattened dim"][0], sum_over(A, sum_over(B, exp(x(iota(A) * const(7) + iota(B)))))),
    "another diagonal": (
        PAIRS["a sum along diagonals"][0],
        sum_over(R, sum_over(J, sum_over(I, along(place + const(1))))),
    ),
    "another factor": (sum_over(I, pair(const(2.0))), sum_over(I, pair(const(2.0000002)))),
    "another factor of a sum that is mostly empty": (sum_over(FEW, few(2.0)), sum_over(FEW, few(3.0))),
    "an undefined one": (pair(const(1.0)) / const(0.0), pair(const(1.0)) / const(0.0)),
}


def compared(name, pairs):
    demand_equal(NOTHING, [tuple(Canonical()(term) for term in pairs[name])])


@pytest.mark.parametrize("name", PAIRS)
def test_equal_terms_are_found_equal(name):
    compared(name, PAIRS)


@pytest.mark.parametrize("name", OTHERS)
def test_other_terms_are_refused(name):
    with pytest.raises(NotReadBack):
        compared(name, OTHERS)


INNER = {  # what may stand for another part, and what may not
    "the same product": (x(iota(D)) * const(2.0), x(iota(D)) + x(iota(D)), True),
    "crossed operands": (x(iota(D)) * const(2.0), const(2.0) * (x(iota(D)) * const(1.0)), True),
    "another product": (x(iota(D)) * const(2.0), x(iota(D)) * const(3.0), False),
    "undefined, and not": (x(iota(D)) / const(0.0), x(iota(D)) / const(1.0), False),
}


@pytest.mark.parametrize("name", INNER)
def test_of_terms_that_are_alike_only_the_parts_that_differ_are_evaluated(name):
    one, other, same = INNER[name]
    around = lambda part: sum_over(D, log(exp(part) / x(const(0))))
    values = SampledValues(Points({}), {}, {})
    assert (PartsThatDiffer(values).agreement(around(one), around(other)) is not None) == same
    assert any(node.op in ("exp", "log", "reduce") for node in values.done) != same


def test_parts_are_compared_under_any_number_of_operations():
    one, other = (x(iota(D)) * const(2.0), x(iota(D)) + x(iota(D)))
    for _ in range(2000):
        one, other = exp(one), exp(other)
    assert PartsThatDiffer(SampledValues(Points({}), {}, {})).agreement(one, other)

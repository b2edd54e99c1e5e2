"""The inequalities of atoms: a floor is near its argument, a sine is small; they exclude signs that cannot be."""

from fractions import Fraction
from types import SimpleNamespace

import pytest

from onepass.egraph.terms.ops import const, make, maximum, minimum, var, where
from onepass.proofs.algebra.bounds import bounds_of
from onepass.proofs.algebra.floor_division import floor
from onepass.proofs.algebra.functions import circular
from onepass.proofs.algebra.linear_inequalities import feasible
from onepass.proofs.algebra.polynomial import add, number, of_atom
from onepass.proofs.provers.case_analysis import VariableFacts, compare

X = of_atom("var", "x")
FLOOR = floor(X, SimpleNamespace(implied=lambda q: None))


@pytest.mark.parametrize(("more", "sign", "may_be"), [(0, 1, True), (0, -1, False), (1, 1, False), (1, -1, True)])
def test_a_floor_is_at_most_its_argument_and_more_than_it_less_one(more, sign, may_be):
    difference = (X - FLOOR - number(more)).over
    assert feasible([(difference, sign)], bounds_of([difference])) == may_be
    assert feasible([(difference, sign)])


def test_sines_are_bounded_and_other_atoms_are_not():
    cosine, sine = circular(X)
    for p in (cosine.over, sine.over):
        above = add(p, number(Fraction(3, 2)).over, -1)
        assert not feasible([(above, 1)], bounds_of([above]))
    assert bounds_of([X.over]) == []


def function(name):
    return lambda x: make(name, (x,))


A, SIN, COS, DOWN = var("a"), function("sin"), function("cos"), function("floor")
TRUE = [
    (maximum(SIN(A), const(1.0)), const(1.0)),
    (minimum(COS(A), const(-1.0)), const(-1.0)),
    (maximum(A - DOWN(A), const(0.0)), A - DOWN(A)),
    (minimum(A - DOWN(A), const(1.0)), A - DOWN(A)),
    (maximum(DOWN(A), DOWN(A + 0.5)), DOWN(A + 0.5)),
]
FALSE = [
    (maximum(SIN(A), const(0.5)), const(0.5)),
    (minimum(A - DOWN(A), const(0.5)), A - DOWN(A)),
    (where(make("lt", (DOWN(A), A)), A, A + 1.0), A + 0.0),
]


@pytest.mark.parametrize("sides", TRUE, ids=lambda sides: str(sides[0]))
def test_bounds_prove(sides):
    assert compare(*sides, VariableFacts(lambda _: ("real",))).both


@pytest.mark.parametrize("sides", FALSE, ids=lambda sides: str(sides[0]))
def test_bounds_prove_nothing_more(sides):
    assert not compare(*sides, VariableFacts(lambda _: ("real",))).forward

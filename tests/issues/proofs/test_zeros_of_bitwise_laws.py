"""Laws said to hold bitwise were compared without a zero's sign: a + 0 = a, which turns -0 into 0, was proved."""

import pytest

from onepass import rule
from onepass.egraph.terms.ops import const
from onepass.proofs.check import check


@rule(exact="bitwise")
def add_nothing(a):
    """a + 0 = a"""
    return a + const(0.0), a


@rule(exact="bitwise")
def minus_from_nothing(a):
    """0 - a = -a"""
    return const(0.0) - a, -a


@rule(exact="a zero has no sign")
def add_nothing_said_rightly(a):
    """a + 0 = a, but for the sign of a zero"""
    return a + const(0.0), a


@pytest.mark.parametrize("law", [add_nothing, minus_from_nothing], ids=lambda law: law.name)
def test_a_law_that_changes_the_sign_of_a_zero_is_not_bitwise(law):
    assert check(law).status == "refuted"


def test_it_may_be_said_otherwise():
    assert check(add_nothing_said_rightly).status == "proved"

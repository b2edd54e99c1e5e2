"""A stored value is the value: proved as other laws are, and no law of a search, which has one class for both sides."""

import pytest

import onepass
from onepass.egraph.derivation import ledger
from onepass.egraph.rewrite.match import rewrite
from onepass.egraph.search.engine import saturate
from onepass.egraph.terms.ops import cast, const, iota, load, stored, sum_over
from onepass.egraph.terms.term import Dim, Tensor
from onepass.rules import ADDED, ALL, DEMOTION, DIRECTED, NORMAL, PHASES
from onepass.rules.demotion import read_of_stored

J = Dim("j", 8)
x = load(Tensor("x", "float32", (8,)), iota(J))


def test_the_law_is_proved_and_not_searched_with():
    searched = {*NORMAL, *ADDED, *PHASES["algebra"], *PHASES["streaming"], *DIRECTED}
    assert {*DEMOTION} <= {*ledger.proved(ALL)} and searched.isdisjoint(DEMOTION)


def test_any_name_is_erased_and_nothing_else():
    assert all(rewrite(read_of_stored, stored(value, name)) is value for name in "ab" for value in (x, const(1.0)))
    assert rewrite(read_of_stored, x) is None and rewrite(read_of_stored, cast(x, "float16")) is None


def test_both_sides_are_one_class_of_an_e_graph():
    both = sum_over(J, stored(x, "part") + x), sum_over(J, x + x)
    found = saturate(both, {"demotion": DEMOTION})
    assert found.roots[0] == found.roots[1] and found.fired == ("read_of_stored",)


@pytest.mark.parametrize("other", ["another value", "a sum of it", "a narrower value"])
def test_wrong_laws_of_what_is_stored_are_refuted(other):
    right = {
        "another value": lambda x, t: 2.0 * x,
        "a sum of it": lambda x, t: sum_over("j", stored(x, t)),
        "a narrower value": lambda x, t: cast(x, "float16"),
    }[other]

    def wrong(x: "j", t: "name"):
        """stored(x) = something else"""
        return (stored(x, t) if other != "a sum of it" else sum_over("j", x) + stored(x, t)), right(x, t)

    assert onepass.check(onepass.rule(wrong, exact="bitwise")).status == "refuted"

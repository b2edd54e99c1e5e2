"""A stored value is the value, and a reduction is that of its blocks or parts: proved as other laws are, and no laws of
a search."""

from time import thread_time

import numpy as np
import pytest

import onepass
from onepass.egraph.derivation import ledger
from onepass.egraph.rewrite.match import applied, rewrite
from onepass.egraph.rewrite.rule import RuleError
from onepass.egraph.search.engine import EngineError, saturate
from onepass.egraph.terms.evaluate import evaluate
from onepass.egraph.terms.ops import (
    MONOIDS,
    OPERATION_OF,
    at,
    cast,
    const,
    iota,
    load,
    make,
    reduce,
    scaled,
    stored,
    sum_over,
)
from onepass.egraph.terms.term import Dim, Tensor, TermError
from onepass.proofs.check import check, prove
from onepass.proofs.provers import reduction_prover, theorems
from onepass.proofs.unsound_rules import ZOO
from onepass.rules import ADDED, ALL, DEMOTION, DIRECTED, NORMAL, PHASES
from onepass.rules.demotion import (
    read_of_stored,
    reduction_cut_in_two,
    reduction_in_blocks,
    reduction_in_parts,
    states_by_their_numbers,
)

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
    found = saturate(both, {"demotion": (read_of_stored,)})
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


# Reductions in blocks, cut in two, and in parts

B, I, P = Dim("b", 3), Dim("i", 4), Dim("p", 5)
K = Dim("k", 12)
y = load(Tensor("y", "float64", (12,)), iota(K))
w = load(Tensor("w", "float64", (12,)), iota(K))
part = load(Tensor("part", "int64", (12,)), iota(K))
VALUES = {
    "y": np.array([1e30, -1e30, 3.0, -0.0, 0.5, -np.inf, 2.0, 7.0, -2.5, 1.5, 1e-30, -4.0]),
    "w": np.linspace(-1.0, 2.0, 12),
    "part": np.array([7, -3, 0, 1, 2, 4, 4, 9, -12, 3, 1, 0]),
}
CHOSEN = {
    reduction_in_blocks: {"dim b": B, "dim i": I},
    reduction_cut_in_two: {"dim a": Dim("a", 5), "dim b": Dim("c", 7)},
    reduction_in_parts: {"c": part, "dim p": P},
}


def element(monoid):
    if monoid == "rescaled":
        return scaled(y, w)
    return make("lt", (y, w)) if MONOIDS[monoid].dtype == "bool" else y if monoid in ("max", "min") else w


@pytest.mark.parametrize("law", CHOSEN, ids=lambda law: law.name)
@pytest.mark.parametrize("monoid", MONOIDS)
def test_both_sides_have_one_value_for_every_monoid(law, monoid):
    whole = reduce(monoid, K, element(monoid))
    if law is reduction_cut_in_two and monoid not in OPERATION_OF:
        assert rewrite(law, whole, CHOSEN[law]) is None, "no operation of terms joins two states"
        return
    made = applied(law, whole, CHOSEN[law])
    assert made is not whole and made.dims == whole.dims
    for one, other in zip(*(np.atleast_1d(evaluate(side, VALUES)) for side in (whole, made)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12)


def test_states_are_their_numbers_absent_ones_too():
    """Of the parts of this row one has no element, and one has only the score -∞."""
    parts = applied(reduction_in_parts, reduce("rescaled", K, scaled(y, w)), CHOSEN[reduction_in_parts])
    made = applied(states_by_their_numbers, parts)
    for read in ("scale", "mantissa"):
        one, other = (evaluate(make(read, (state,)), VALUES) for state in (parts, made))
        np.testing.assert_allclose(one, other, rtol=1e-12)


@pytest.mark.parametrize(
    "law, chosen",
    [
        (reduction_in_blocks, {}),
        (reduction_in_blocks, {"dim b": B}),
        (reduction_in_blocks, {"dim b": B, "dim i": Dim("i", 5)}),
        (reduction_in_blocks, {"dim b": Dim("b", 1), "dim i": K}),
        (reduction_in_blocks, {"dim b": Dim("i", 3), "dim i": Dim("j", 4)}),
        (reduction_cut_in_two, {"dim a": Dim("a", 5), "dim b": Dim("c", 6)}),
        (reduction_in_parts, {"c": y, "dim p": P}),
        (reduction_in_parts, {"c": part + iota(P), "dim p": P}),
    ],
)
def test_what_is_chosen_has_to_be_new_and_to_fit(law, chosen):
    """Nothing chosen, too little, sizes that do not fit, the dim itself, a dim around it, no index, one of the part."""
    whole = sum_over(K, y * load(Tensor("z", "float64", (4,)), iota(Dim("j", 4))))
    assert rewrite(law, whole, chosen) is None
    with pytest.raises(TermError, match="does not apply"):
        applied(law, whole, chosen)


def test_a_dim_that_a_reduction_inside_binds_is_new_where_nothing_is_read_by_the_whole_one():
    inner = lambda body: sum_over(B, body)
    alone, around = (inner(load(Tensor("z", "float64", (3,)), iota(B)) * by) for by in (const(1.0), y))
    assert rewrite(reduction_in_blocks, sum_over(K, y * alone), CHOSEN[reduction_in_blocks]) is not None
    assert rewrite(reduction_in_blocks, sum_over(K, around), CHOSEN[reduction_in_blocks]) is None


def test_no_search_has_these_laws():
    for law in CHOSEN:
        with pytest.raises(EngineError, match="chosen by its user"):
            saturate((sum_over(J, x),), {"demotion": (law,)})


WRONG = [law for law in ZOO if law.chosen]


def test_wrong_laws_of_parts_are_refuted_and_no_prover_proves_them():
    assert len(WRONG) == 6
    for law in WRONG:
        assert check(law).status == "refuted" and not prove(law, thread_time() + 10).holds


@pytest.mark.parametrize("hypothesis", ["op_assoc", "op_unit_left", "op_comm"])
@pytest.mark.parametrize("law", CHOSEN, ids=lambda law: law.name)
def test_the_hypotheses_of_a_monoid_are_needed(law, hypothesis, monkeypatch):
    """With an operation for sums that is not associative, has no such unit, or does not commute, nothing is proved; but
    blocks and the two parts stay in order."""
    wrong = {
        "op_assoc": theorems.Structure(lambda a, b: (a + b) * 0.5, const(0.0)),
        "op_unit_left": theorems.Structure(lambda a, b: a + b, const(1.0)),
        "op_comm": theorems.Structure(lambda a, b: b, const(0.0)),
    }[hypothesis]
    assert not reduction_prover.compare(
        *theorems.statement(hypothesis, wrong), reduction_prover.VariableFacts(lambda _: reduction_prover.EVERY)
    ).both
    monkeypatch.setattr(theorems, "monoid", lambda name: wrong)
    for cached in (reduction_prover.law_holds, reduction_prover.applies):
        cached.cache_clear()
    in_order = law is not reduction_in_parts and hypothesis == "op_comm"
    theorem = {reduction_in_blocks: "Monoid.tile", reduction_cut_in_two: "Monoid.split"}.get(law, "Monoid.partition")
    try:
        assert reduction_prover.applies(theorem, "sum") == in_order
    finally:
        for cached in (reduction_prover.law_holds, reduction_prover.applies):
            cached.cache_clear()


def test_new_dims_are_on_the_right_side_alone_and_bound_there():
    def on_the_left(s: "j", b: "new dim"):
        """Σ_b s = Σ_b s + 0"""
        return sum_over(b, s), sum_over(b, s) + 0.0

    def free(s: "j", b: "new dim"):
        """Σ_j s = (Σ_j s) · b"""
        return sum_over("j", s), sum_over("j", s) * cast(iota(b), "float32")

    def of_a_sum(s: "j", b: "new dim"):
        """Σ_j s = Σ_b (s + s) at b"""
        return sum_over("j", s), sum_over(b, at(s + s, "j", iota(b)))

    for wrong, said in ((on_the_left, "annotated as new"), (free, "no reduction"), (of_a_sum, "of a variable")):
        with pytest.raises(RuleError, match=said):
            onepass.rule(wrong)

"""Reductions that a plan does in blocks or parts are read as whole ones by laws, and no guess is believed."""

import numpy as np
import pytest

from onepass.egraph.derivation.certificate import CertificateError, Derivation, check
from onepass.egraph.rewrite.match import applied
from onepass.egraph.terms.evaluate import evaluate
from onepass.egraph.terms.ops import (
    cast,
    const,
    eq,
    iota,
    le,
    load,
    make,
    mantissa,
    reduce,
    scale,
    scaled,
    sum_over,
    where,
)
from onepass.egraph.terms.term import Dim, Tensor
from onepass.egraph.terms.traversal import reduces, substitute
from onepass.lowering.readback import whole_reductions
from onepass.lowering.readback.canonical_terms import Canonical
from onepass.lowering.readback.erase_stored import erasing
from onepass.lowering.readback.whole_reductions import WholeReductions
from onepass.rules import ALL
from onepass.rules.demotion import reduction_in_blocks, reduction_in_parts, states_by_their_numbers

J, R, B, I, P = Dim("j", 12), Dim("r", 5), Dim("b", 3), Dim("i", 4), Dim("p", "parts")
x, y = (load(Tensor(name, "float64", (12, 5)), iota(J), iota(R)) for name in "xy")
part = load(Tensor("part of j", "int64", (12,)), iota(J))
masked = where(le(iota(J), iota(R) * 2), x, const(0.0))
states = scaled(where(le(iota(J), iota(R) * 2), x, const(-float("inf"))), y)
P2, Q2 = Dim("p2", 2), Dim("q2", 2)
WHOLE = {
    "a sum": sum_over(J, x * y),
    "a maximum": reduce("max", J, x),
    "a masked sum": sum_over(J, masked),
    "states": mantissa(reduce("rescaled", J, states)),
    "a scale": scale(reduce("rescaled", J, states)) * 2.0,
    "a reduction inside": sum_over(J, x * sum_over(R, y)),
    "an index beside it": sum_over(J, load(Tensor("z", "float64", (24,)), iota(J) * 2 + const(1)) * x),
}
LAWS = {
    "blocks": (reduction_in_blocks, {"dim b": B, "dim i": I}),
    "parts": (reduction_in_parts, {"c": part, "dim p": P}),
}


def done_in(law, chosen, root):
    """The term with its reduction over j by the law, and by the numbers of its states."""
    (whole,) = (r for r in reduces(root) if r.attrs[1] is J)
    made = applied(law, whole, chosen)
    return substitute(root, {whole: applied(states_by_their_numbers, made) if made.attrs[0] == "rescaled" else made})


@pytest.mark.parametrize("how", LAWS)
@pytest.mark.parametrize("name", WHOLE)
def test_what_a_law_divides_is_read_as_the_whole(name, how):
    law, chosen = LAWS[how]
    divided, whole = done_in(law, chosen, WHOLE[name]), WholeReductions()
    assert Canonical()(divided) is not Canonical()(WHOLE[name])
    assert whole(Canonical()(divided)) is Canonical()(WHOLE[name])
    of_states = name in ("states", "a scale")
    assert {*whole.laws} == {law.name, *([states_by_their_numbers.name] if of_states else [])}


def test_blocks_of_blocks_are_one():
    once = done_in(*LAWS["blocks"], WHOLE["a sum"])
    twice = make("reduce", (applied(reduction_in_blocks, once.args[0], {"dim b": P2, "dim i": Q2}),), once.attrs)
    assert WholeReductions()(twice) is Canonical()(WHOLE["a sum"])


def test_a_term_without_blocks_stays():
    whole = WholeReductions()
    for term in WHOLE.values():
        assert whole(term) is Canonical()(term)
    assert not whole.laws


def other(place):
    return sum_over(B, sum_over(I, load(Tensor("x", "float64", (12, 5)), place, iota(R))))


WRONG = {
    "blocks that overlap": other(iota(B) + iota(I)),
    "blocks in another order of memory": other(iota(I) * 3 + iota(B)),
    "a place of a block alone": other(iota(B) * 4 + iota(I)) + sum_over(B, sum_over(I, cast(iota(B), "float64"))),
    "two monoids": reduce("max", B, other(iota(B) * 4 + iota(I)).args[0]),
    "a part that is not its own": sum_over(
        P, sum_over(J, where(eq(part % make("size", (), ("other",)), iota(P)), x, const(0.0)))
    ),
    "elements without a part": sum_over(P, sum_over(J, where(eq(part, iota(P)), x, const(0.0)))),
    "no sum's identity": sum_over(
        P, sum_over(J, where(eq(part % make("size", (), ("parts",)), iota(P)), x, const(1.0)))
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_instance_of_a_law_stays(name):
    """Where the order alone is another one, the value is that of the whole; the law says nothing of it."""
    whole = WholeReductions()
    found = whole(WRONG[name])
    if name == "a place of a block alone":
        assert found is not Canonical()(WRONG[name]) and len(whole.laws) == 1, "one of the two sums is whole"
        values = {"x": np.random.default_rng(0).standard_normal((12, 5))}
        np.testing.assert_allclose(evaluate(found, values), evaluate(WRONG[name], values))
    else:
        assert found is Canonical()(WRONG[name]) and not whole.laws


def test_a_wrong_guess_is_not_believed(monkeypatch):
    wrong = lambda node: (sum_over(J, x), {"dim b": B, "dim i": I})
    monkeypatch.setattr(whole_reductions, "_GUESSES", ((reduction_in_blocks, wrong),))
    divided = Canonical()(done_in(*LAWS["blocks"], WHOLE["a sum"]))
    assert WholeReductions()(divided) is divided


def test_a_certificate_has_the_step_and_another_one_is_refused():
    divided = Canonical()(done_in(*LAWS["blocks"], WHOLE["a sum"]))
    chain = erasing(divided)
    assert chain.rules == ("reduction_in_blocks",) and Canonical()(chain.goal) is Canonical()(WHOLE["a sum"])
    check(Derivation.from_json(chain.to_json()), ALL)
    forged = chain.to_json()
    place = next(node for node in forged["goal"]["nodes"] if node[0] == "load")
    for text in (forged["goal"], forged["steps"][0][4]):
        next(node for node in text["nodes"] if node[0] == "load")[2] = [{"tensor": ["other", "float64", [12, 5]]}]
    assert place[2] == [{"tensor": ["other", "float64", [12, 5]]}]
    with pytest.raises(CertificateError, match=r"nothing new that fits|the right side is"):
        check(Derivation.from_json(forged), ALL)

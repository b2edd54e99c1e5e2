"""Reads reductions that a plan does in blocks or in parts as whole ones, by laws of rules/demotion.py.

For each law there is a guess of the whole, the left side, from what may be the right side. The law is then applied to
the guess, and has to give that very term, up to names of bound dims and the form of indices. Invariant: so no guess is
believed. Example: Σ_b Σ_i x[b · 8 + i] is Σ_j x[j] by the law `reduction_in_blocks`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ...egraph.rewrite.match import applied, rewrite
from ...egraph.rewrite.rule import Rule
from ...egraph.terms.index_simplify import simplify_index
from ...egraph.terms.ops import MONOIDS, const, iota, make
from ...egraph.terms.term import Dim, Term
from ...egraph.terms.traversal import at_place, substitute
from ...rules.demotion import reduction_in_blocks, reduction_in_parts, states_by_their_numbers
from .canonical_terms import Canonical, literals, named

Guess = tuple[Term, dict[str, object]]  # a whole reduction, and what the law's right side alone has
WHOLE = "whole"  # the name of a dim of a guess


class WholeReductions(Canonical):
    """Makes terms canonical, with whole reductions where a law has them. laws: the names of those that it used."""

    def __init__(self):
        super().__init__()
        self.laws: dict[str, None] = {}

    def replaced(self, node: Term) -> Term | None:
        """The canonical reduction for one that is done in parts, and the scale of one; None for other nodes."""
        if node.op == "scale":
            return self._scale(node)
        return self._reduction(node) if node.op == "reduce" else None

    def _reduction(self, node: Term) -> Term:
        current = named(node)
        while (found := self._whole(current)) is not None:
            current = found
        return current

    def _scale(self, node: Term) -> Term | None:
        """The scale of states for one of their numbers, of which a canonical term has no mantissa."""
        (state,) = node.args
        if state.op != "reduce" or state.args[0].op != "scaled" or state.args[0].args[0].op != "scale":
            return None
        states = make("reduce", state.args[0].args[0].args, state.attrs)
        by_numbers = make("scale", (applied(states_by_their_numbers, states),))
        if not _are_one(by_numbers, node):
            return None
        self.laws[states_by_their_numbers.name] = None
        return Canonical()(make("scale", (self._reduction(states),)))

    def _whole(self, node: Term) -> Term | None:
        for law, whole, chosen in guesses(node):
            again = rewrite(law, whole, chosen)
            if again is not None and _are_one(again, node):
                self.laws[law.name] = None
                return Canonical()(whole)
        return None


def guesses(node: Term) -> Iterator[tuple[Rule, Term, dict[str, object]]]:
    """The laws with what they may have been applied to, where a reduction is their right side."""
    for law, guess in _GUESSES:
        if (found := guess(node)) is not None:
            yield law, *found


def _are_one(again: Term, node: Term) -> bool:
    canonical = Canonical()
    return canonical(again) is canonical(node) or canonical(simplify_index(again)) is canonical(simplify_index(node))


def _of_blocks(node: Term) -> Guess | None:
    (monoid, blocks), (inner,) = node.attrs, node.args
    if inner.op != "reduce" or inner.attrs[0] != monoid:
        return None
    inside, body = inner.attrs[1], inner.args[0]
    if not isinstance(blocks.size, int) or not isinstance(inside.size, int):
        return None
    dim, step = Dim(WHOLE, blocks.size * inside.size), const(inside.size)
    element = substitute(body, {iota(blocks) * step + iota(inside): iota(dim)})
    if not {blocks, inside}.isdisjoint(element.dims):
        element = simplify_index(at_place(body, inside, iota(dim) - iota(blocks) * step))
    if not {blocks, inside}.isdisjoint(element.dims):
        return None
    return make("reduce", (element,), (monoid, dim)), {"dim b": blocks, "dim i": inside}


def _of_parts(node: Term) -> Guess | None:
    (monoid, part), (inner,) = node.attrs, node.args
    if inner.op != "reduce" or inner.attrs[0] != monoid:
        return None
    score, *weight = inner.args[0].args if inner.args[0].op == "scaled" else inner.args
    if score.op != "where":
        return None
    condition, kept, _ = score.args
    every = literals(condition)
    own = [one for one in every if one.op == "eq" and one.args[1] is iota(part) and one.args[0].op == "mod"]
    if len(own) != 1:
        return None
    identity = const(MONOIDS[monoid].identity[0] if monoid == "rescaled" else MONOIDS[monoid].identity)
    for other in (one for one in every if one is not own[0]):
        kept = make("where", (other, kept, identity))
    body = make("scaled", (kept, *weight)) if weight else kept
    return make("reduce", (body,), inner.attrs), {"c": own[0].args[0].args[0], "dim p": part}


def _of_numbers(node: Term) -> Guess | None:
    body = node.args[0]
    if body.op != "scaled" or body.args[0].op != "scale" or body.args[1].op != "where":
        return None
    found = body.args[1].args[2]
    return (make("reduce", found.args, node.attrs), {}) if found.op == "mantissa" else None


_GUESSES: tuple[tuple[Rule, Callable[[Term], Guess | None]], ...] = (
    (states_by_their_numbers, _of_numbers),
    (reduction_in_parts, _of_parts),
    (reduction_in_blocks, _of_blocks),
)

"""Weights exp(s - L) of scores that are masked by a large negative number, in terms that read L from memory.

L is the logarithm of Σ_j exp(s), saved as a shift and what is left of it. Where each row is proved to keep something,
the weight of a masked score is 0, as in the loop that computed L. It is written as a choice of 0, and choices are moved
out of products, so that a sum's loop leaves out what is masked. Example: of exp(q·k + where(j <= i, 0, -1e9) - L) a
loop over the rows i begins at j.
"""

from __future__ import annotations

from collections.abc import Collection

from ...egraph.terms.ops import const, make, where
from ...egraph.terms.term import Tensor, Term
from ...egraph.terms.traversal import rebuild, subterms
from .finite_masks import finite_mask, keeps_some
from .loop_ranges import conjunction, conjuncts

LINEAR = ("mul", "cast", "neg")  # operations that are 0 where an operand is, and div where the first one is


def with_masked_weights_as_zeros(term: Term, saved: Collection[Tensor]) -> Term:
    """The term with its masked weights as choices of 0, outside of products. saved: the parts of logarithms of sums."""
    choices: set[Term] = set()

    def chosen(kept: Term, value: Term) -> Term:
        found = where(kept, value, const(0.0))
        choices.add(found)
        return found

    def change(node: Term, args: tuple[Term, ...]) -> Term:
        made = node if args == node.args else make(node.op, args, node.attrs)
        if made.op == "exp":
            weight = _masked_weight(made, saved)
            return made if weight is None else chosen(*weight)
        if made.op in LINEAR:
            return _moved_out(made, len(made.args))
        return _moved_out(made, 1) if made.op == "div" else made

    def _moved_out(made: Term, operands: int) -> Term:
        for number, operand in enumerate(made.args[:operands]):
            if operand in choices:
                kept, value, _ = operand.args
                inner = make(made.op, (*made.args[:number], value, *made.args[number + 1 :]), made.attrs)
                return chosen(kept, _moved_out(inner, operands))
        return made

    return rebuild(term, change)


def _masked_weight(weight: Term, saved: Collection[Tensor]) -> tuple[Term, Term] | None:
    """(the elements that the mask keeps, the weight of these); None if nothing is masked, or a row may keep nothing."""
    scores, subtracted = weight.args[0], []
    while scores.op == "sub" and _is_saved(scores.args[1], saved):
        subtracted.append(scores.args[1])
        scores = scores.args[0]
    masked = finite_mask(scores) if subtracted else None
    if masked is None:
        return None
    kept = conjunction(conjuncts(masked.kept))
    summed = kept.dims - frozenset().union(*(part.dims for part in subtracted))
    if len(summed) != 1 or not keeps_some(kept, *summed):
        return None
    exponent = masked.seen
    for part in reversed(subtracted):
        exponent = exponent - part
    return kept, make("exp", (exponent,))


def _is_saved(term: Term, saved: Collection[Tensor]) -> bool:
    """Whether the term is made of saved values alone."""
    loads = [node for node in subterms(term) if node.op == "load"]
    return bool(loads) and all(node.attrs[0] in saved for node in loads)

"""Weights exp(s - L) of scores that are masked by a large negative number, in terms that read L from memory.

L is the logarithm of Σ_j exp(s), saved as a shift and what is left of it. Where each row is proved to keep something,
the weight of a masked score is 0, as in the loop that computed L. It is written as a choice of 0, and choices are moved
out of products, so that a sum's loop leaves out what is masked. Example: of exp(q·k + where(j <= i, 0, -1e9) - L) a
loop over the rows i begins at j.
"""

from __future__ import annotations

from collections.abc import Collection
from math import inf

from ...egraph.terms.ops import const, eq, make, where
from ...egraph.terms.term import Dim, Tensor, Term
from ...egraph.terms.traversal import rebuild, subterms
from ..plan.term_edits import renaming
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


def with_hidden_weights_left_out(term: Term) -> Term:
    """The term, in which sums of weights exp(where(p, s, -∞) - c) leave out what p hides.

    There c is the largest s of a row, or more. The loop of such a sum ends where p does, and reads nothing behind. A
    row that keeps nothing has c = -∞, and its sum is NaN, as each exp(c - c) is. Example: a softmax beside a sink in
    two loops, the first of which finds the largest score.
    """

    def change(node: Term, args: tuple[Term, ...]) -> Term:
        made = node if args == node.args else make(node.op, args, node.attrs)
        if made.op != "reduce" or made.attrs[0] != "sum":
            return made
        found, dim = _hidden(made.args[0], made.attrs[1]), made.attrs[1]
        if found is None or dim not in found[0].dims or found[2].dtype != made.dtype:
            return made
        kept, value, shift = found
        total = make("reduce", (where(kept, value, const(0.0)),), made.attrs)
        return where(eq(shift, const(-inf)), shift - shift, total)

    return rebuild(term, change)


def _hidden(value: Term, dim: Dim) -> tuple[Term, Term, Term] | None:
    """What hides a weight in a product, the product without that, and the weight's shift; None where nothing does."""
    if value.op == "exp":
        return _hidden_weight(value, dim)
    for number, operand in enumerate(value.args[:1] if value.op == "div" else value.args):
        found = _hidden(operand, dim) if value.op in (*LINEAR, "div") else None
        if found is not None:
            kept, shown, shift = found
            return kept, make(value.op, (*value.args[:number], shown, *value.args[number + 1 :]), value.attrs), shift
    return None


def _hidden_weight(weight: Term, dim: Dim) -> tuple[Term, Term, Term] | None:
    exponent = weight.args[0]
    scores, shift = exponent.args if exponent.op == "sub" else (exponent, None)
    is_masked = scores.op == "where" and scores.args[2] is const(-inf)
    if not is_masked or shift is None or dim in shift.dims or not _is_at_least(shift, scores, dim):
        return None
    return scores.args[0], make("exp", (scores.args[1] - shift,)), shift


def _is_at_least(shift: Term, scores: Term, dim: Dim) -> bool:
    """Whether a number of each row is the largest of its scores, or more."""
    if shift.op == "maximum":
        return any(_is_at_least(a, scores, dim) for a in shift.args)
    reduced = shift.args[0] if shift.op == "scale" else shift
    if reduced.op != "reduce" or reduced.attrs[0] != ("rescaled" if shift.op == "scale" else "max"):
        return False
    body = reduced.args[0].args[0] if reduced.args[0].op == "scaled" else reduced.args[0]
    names = renaming(body, scores)
    own = reduced.attrs[1]
    return names is not None and names.get(own) == dim and all(a == b for a, b in names.items() if own not in (a, b))

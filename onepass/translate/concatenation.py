"""Concatenations: a choice between tensors by position; and what a reduction goes over, cut in pieces or put together.

⊕_j s = (⊕_{j < n} s) ⊕ (⊕_{j ≥ n} s): a law of rules/demotion.py. In a piece each choice by position is decided, so
nothing is concatenated. Likewise, a sum over a stack of other sums is their sum. Along axes that are not reduced
the choice stays, with indices clamped to the tensors. It also stays in one factor of a short sum of products, which
is then computed whole. A wide sum over columns of which the first are read elsewhere, too, is cut where these end.
The other way round, a reduction over two axes of scores is one over both.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from .. import messages
from ..egraph.rewrite.match import rewrite
from ..egraph.terms.affine import affine, bounds, compare
from ..egraph.terms.index_simplify import simplify_index
from ..egraph.terms.ops import OPERATION_OF, const, iota, make, reduce
from ..egraph.terms.sizes import Size, term_of
from ..egraph.terms.term import Dim, Term
from ..egraph.terms.traversal import at_place, rebuild, reduces, subterms, tensors
from ..lowering.analysis.dim_roles import is_long, sum_factors
from ..lowering.analysis.exact_products import native
from ..lowering.plan.thresholds import MAX_OPERAND_WIDTH, MAX_RESIDENT_ELEMENTS
from ..rules.demotion import reduction_cut_in_two
from .registry import Handlers, OperatorCall, TensorValue, choose, convert, require_fit, stored_literal, term_dtype

handles = Handlers()


def at_most(i: Term, largest: Term) -> Term:
    """min(i, largest), or the one of them that is known to be the smaller one."""
    low, high = bounds(largest - i)
    if low is not None and low >= 0:
        return i
    return largest if high is not None and high <= 0 else make("minimum", (i, largest))


def at_least(i: Term, smallest: Term) -> Term:
    """max(i, smallest), or the one of them that is known to be the larger one."""
    low, high = bounds(i - smallest)
    if low is not None and low >= 0:
        return i
    return smallest if high is not None and high <= 0 else make("maximum", (i, smallest))


def _replaced(index, axis: int, new: Term) -> tuple[Term, ...]:
    return (*index[:axis], new, *index[axis + 1 :])


def _among(parts: list[TensorValue], axis: int, index, dtype: str) -> Term:
    first, *rest = parts
    own = convert(first.at(index), dtype) if not rest else None
    if own is not None:
        return own
    i, size = index[axis], term_of(first.shape[axis])
    here = compare("lt", i, size)
    if here.op == "const":
        kept, moved = (parts[:1], i) if here.attrs[0] else (rest, simplify_index(i - size))
        return _among(kept, axis, _replaced(index, axis, moved), dtype)
    inside = simplify_index(at_most(i, simplify_index(size - const(1))))
    behind = simplify_index(at_least(simplify_index(i - size), const(0)))
    left = convert(first.at(_replaced(index, axis, inside)), dtype)
    return choose(here, left, _among(rest, axis, _replaced(index, axis, behind), dtype))


@handles("aten.cat.default", "aten.concat.default", "aten.concatenate.default")
def concatenate(call: OperatorCall) -> TensorValue:
    """Tensors one after another along an axis."""
    parts = call["tensors"]
    axis = parts[0].axis(call["dim"])
    return call.value(lambda index: _among(parts, axis, index, term_dtype(call.meta.dtype)))


@handles("aten.stack.default")
def stack(call: OperatorCall) -> TensorValue:
    """Tensors along a new axis."""
    parts, axis = call["tensors"], call["dim"] % len(call.meta.shape)

    def pull(index):
        dtype, (*others, last) = term_dtype(call.meta.dtype), parts
        rest = (*index[:axis], *index[axis + 1 :])
        found = convert(last.at(rest), dtype)
        for k, part in reversed(list(enumerate(others))):
            found = choose(compare("le", index[axis], const(k)), convert(part.at(rest), dtype), found)
        return found

    return call.value(pull)


@handles("aten.constant_pad_nd.default", "aten.pad.default")
def pad(call: OperatorCall) -> TensorValue:
    """A tensor with a number around it; a negative width would cut off elements and is refused."""
    source, widths = call["self"], call["pad"]
    if call.get("mode", "constant") != "constant" or any(not isinstance(w, int) or w < 0 for w in widths):
        raise call.refuse(messages.PADDING)
    fill = stored_literal(call.get("value") or 0, call.meta.dtype)
    require_fit(call, call.get("value"))
    rank = len(source.shape)
    sides = [(rank - 1 - k, widths[2 * k]) for k in range(len(widths) // 2) if widths[2 * k] or widths[2 * k + 1]]

    def pull(index):
        kept: Term = const(True)
        for axis, before in sides:
            i = simplify_index(index[axis] - const(before))
            last = simplify_index(term_of(source.shape[axis]) - const(1))
            kept = simplify_index(make("and", (kept, compare("le", const(0), i))))
            kept = simplify_index(make("and", (kept, compare("le", i, last))))
            index = _replaced(index, axis, simplify_index(at_most(at_least(i, const(0)), last)))
        return choose(kept, source.at(index), fill)

    return call.value(pull)


# Reductions over pieces -----------------------------------------------------------------------------------------------


def in_pieces(root: Term) -> Term:
    """Splits every reduction over an axis along which an index is clamped, or that stacks sums, so that no piece needs
    the clamp or the choice."""

    def change(node: Term, args: tuple[Term, ...]) -> Term:
        made = node if args == node.args else make(node.op, args, node.attrs)
        return _split(made) if node.op == "reduce" and node.attrs[0] in OPERATION_OF else made

    return rebuild(root, change)


def over_all_places(root: Term) -> Term:
    """One reduction in place of two of one monoid over places of scores: ⊕_n ⊕_s f(n, s) = ⊕_j f(j // S, j % S).

    Only where the largest score is that of as many places. Example: a softmax over pages and their slots, as a sum over
    both axes weighs values, is a softmax over keys. A sum over heads and keys stays two sums.
    """
    counts = {_places(node) for node in subterms(root) if node.op == "reduce" and node.attrs[0] == "max"}

    def change(node: Term, args: tuple[Term, ...]) -> Term:
        made = node if args == node.args else make(node.op, args, node.attrs)
        return _over_both(made, counts) if made.op == "reduce" and made.attrs[0] in OPERATION_OF else made

    return rebuild(root, change) if counts else root


def _places(total: Term) -> Size | None:
    """Over how many places a reduction goes, with those of its monoid that stand in it."""
    size, inner = term_of(total.attrs[1].size), total.args[0]
    while inner.op == "reduce" and inner.attrs[0] == total.attrs[0]:
        size, inner = size * term_of(inner.attrs[1].size), inner.args[0]
    return _size(simplify_index(size))


def _over_both(total: Term, counts: Collection[Size | None]) -> Term:
    (monoid, outer), inner = total.attrs, total.args[0]
    if inner.op != "reduce" or inner.attrs[0] != monoid or not isinstance(step := inner.attrs[1].size, int):
        return total
    if outer.size == 1 and monoid in ("max", "min"):
        return simplify_index(at_place(inner, outer, const(0)))
    body, slot = inner.args[0], inner.attrs[1]
    size = _size(simplify_index(term_of(outer.size) * const(step)))
    if size is None or size not in counts or not any({outer, slot} <= score.dims for score in reduces(body)):
        return total
    both = Dim(f"{outer.name}.{slot.name}", size)
    for dim, index in ((outer, iota(both) // const(step)), (slot, iota(both) % const(step))):
        body = simplify_index(at_place(body, dim, index))
    return _over_both(reduce(monoid, both, body), counts)


def cut_where_columns_end(root: Term) -> Term:
    """Cuts wide sums over columns of a tensor where columns that are read elsewhere end: one load then serves both.

    Example: latents of 576 numbers are keys, and their first 512 are values, too. A product over 512 columns and one
    over 64 are added.
    """
    loads = [n for n in subterms(root) if n.op == "load" and n.args]

    def change(node: Term, args: tuple[Term, ...]) -> Term:
        made = node if args == node.args else make(node.op, args, node.attrs)
        end = _end_of_columns(node, loads)
        return made if end is None else _cut_at(const(end), made)

    return rebuild(root, change)


def _end_of_columns(total: Term, loads: list[Term]) -> int | None:
    """Where columns end that are read beside those of a wide sum; None for another term, or without such."""
    if not (wide := {_row_of(f) for f in _wide_factors(total)}):
        return None
    dim = total.attrs[1]
    others = {d.size for n in loads if _row_of(n) in wide for d in n.dims - {dim} if n.args[-1] is iota(d)}
    ends = [end for end in others if isinstance(end, int) and end <= MAX_OPERAND_WIDTH]
    return max((end for end in ends if end < dim.size), default=None)


def _wide_factors(total: Term) -> list[Term]:
    """The loads along whose last axis a product of loads is summed, where the sum is wide; none for another term."""
    if total.op != "reduce" or total.attrs[0] != "sum":
        return []
    dim, factors = total.attrs[1], [native(factor) for factor in sum_factors(total)]
    known = isinstance(dim.size, int) and dim.size > MAX_OPERAND_WIDTH
    found = [f for f in factors if f is not None and f.op == "load"]
    return [f for f in found if f.args[-1] is iota(dim)] if known and len(found) == len(factors) else []


def _row_of(load: Term) -> tuple[object, ...]:
    """What a load reads, but for its last index and the names of dims: those of a softmax's sums have their own."""
    nodes = (n for index in load.args[:-1] for n in subterms(index))
    return load.attrs[0], *((n.op, n.attrs[0].size if n.op == "iota" else n.attrs) for n in nodes)


def _split(total: Term) -> Term:
    dim, body = total.attrs[1], total.args[0]
    cut = next((c for c in _cuts(body, dim) if _inside(c, dim) and not _in_one_factor(c, total)), None)
    return total if cut is None else _cut_at(cut, total)


def _cut_at(cut: Term, total: Term) -> Term:
    """A reduction cut at a place, by the law; what is around each of the two is split again."""
    dim = total.attrs[1]
    sizes = _size(cut), _size(simplify_index(term_of(dim.size) - cut))
    before, behind = (Dim(f"{dim.name}.{side}", size) for side, size in zip(("before", "after"), sizes, strict=True))
    made = rewrite(reduction_cut_in_two, total, {"dim a": before, "dim b": behind})
    return total if made is None else make(made.op, tuple(map(_piece, made.args)))


def _in_one_factor(cut: Term, total: Term) -> bool:
    """Whether only one of several factors of a short sum has the choice: it costs less there than a second product."""
    dim = total.attrs[1]
    having = [f for f in sum_factors(total) if dim in f.dims]
    return (
        len(having) > 1 and not is_long(dim, MAX_RESIDENT_ELEMENTS) and sum(cut in _cuts(f, dim) for f in having) == 1
    )


def _piece(total: Term) -> Term:
    (monoid, part), body = total.attrs, total.args[0]
    if part.size == 1:
        return in_pieces(simplify_index(at_place(body, part, const(0))))
    return _split(reduce(monoid, part, simplify_index(body)))


def _cuts(body: Term, dim: Dim) -> Iterator[Term]:
    """Positions of the dim at which an index starts or stops being clamped."""
    seen, waiting = set(), [body]
    while waiting:
        node = waiting.pop()
        if node in seen or dim not in node.dims:
            continue
        seen.add(node)
        waiting.extend(node.args)
        if node.op in ("minimum", "maximum") and node.dtype == "int64":
            i, end = node.args
            if affine(i)[0].get(iota(dim)) == 1 and dim not in end.dims:
                first = iota(dim) - i + end
                yield simplify_index(first + const(1) if node.op == "minimum" else first)
        if node.op == "where" and _is_of_stack(node, dim):
            last = node.args[0].args[1]
            yield last if node.args[0].op == "lt" else simplify_index(last + const(1))


def _is_of_stack(choice: Term, dim: Dim) -> bool:
    """Whether a choice by the dim's position alone is between terms without the dim, one of which has reductions.

    Such are the parts of a stack: where it is reduced, each part is computed at one place only.
    """
    condition, *parts = choice.args
    if condition.op not in ("le", "lt") or condition.args[0] is not iota(dim) or dim in condition.args[1].dims:
        return False
    return all(dim not in part.dims for part in parts) and any(tensors(r) for part in parts for r in reduces(part))


def _inside(cut: Term, dim: Dim) -> bool:
    """Whether a position is a sum of sizes with elements before and after it."""
    rest = simplify_index(term_of(dim.size) - cut)
    if dim in cut.dims or _size(cut) is None or const(0) in (cut, rest):
        return False
    (low, _), (left, _) = bounds(cut), bounds(rest)
    known = isinstance(dim.size, int)
    return low is not None and left is not None and (low > 0 and left > 0 if known else low >= 0 and left >= 0)


def _size(x: Term) -> Size | None:
    """A sum of sizes as a number or text; None for anything else."""
    coefficients, constant = affine(x)
    if any(atom.op != "size" for atom in coefficients):
        return None
    if not coefficients:
        return constant
    parts = [f"{c}*{atom.attrs[0]}" if c != 1 else str(atom.attrs[0]) for atom, c in coefficients.items()]
    return " + ".join([*parts, str(constant)] if constant else parts)

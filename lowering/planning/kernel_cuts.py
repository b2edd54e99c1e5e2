"""What of a term no kernel can compute together with the rest: it is stored first, and loaded.

Pure functions over terms; each gives the next part to cut off, or nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from math import prod

import torch

from ...egraph.terms.ops import iota, load, mantissa
from ...egraph.terms.term import Dim, Tensor, Term
from ...egraph.terms.traversal import every_reduction, reduces, substitute, subterms, tensors
from ..analysis.dim_roles import (
    batch_dims,
    batch_of,
    is_contraction,
    is_long,
    is_product,
    loop_reductions,
    size_key,
    state_dims,
)
from ..analysis.softmax_scaling import any_scale
from ..plan.records import NotPlannable
from ..plan.thresholds import FEW


def nested(term: Term, held: int, kept: tuple[Dim, ...]) -> Term | None:
    """What to store first where a loop lies inside a reduction of a dim that it depends on; None if none does.

    First what a state is summed over in: without that sum, a dim may be one that is held.
    """
    loops = loop_reductions([term], held)
    found = []
    for outer in reduces(term):
        inside = [r for r in loops if outer.attrs[1] in r.dims and r is not outer and _reaches(outer, r)]
        if inside and not _maps_values(term, outer, inside, held, kept):
            found.append((all(r.attrs[0] == "sum" for r in inside), outer))
    if not found:
        return None
    outer = min(found, key=lambda pair: pair[0])[1]
    return _smallest_around(outer.args[0], set(loops), {r.attrs[1] for r in loops} - {outer.attrs[1]})


def sharing(term: Term, part: Term, held: int) -> list[Term]:
    """What is left of the states whose gauge a cut part has too: in another kernel their loop would run again."""
    gauges = {_gauge(r) for r in loop_reductions([part], held) if r.args[0].op == "scaled"}
    states = {r for r in loop_reductions([term], held) if r.args[0].op == "scaled" and _gauge(r) in gauges}
    return [t for t in subterms(term) if t.op in ("scale", "mantissa") and t.args[0] in states]


def _gauge(r: Term) -> tuple[Dim, Term]:
    return r.attrs[1], r.args[0].args[0]


def in_the_way(term: Term, rows_of: Callable[[Term], Dim | None], held: int) -> Term | None:
    """A product that no loop changes, of which the rows that a tile could have are a batch: few others are left."""
    rows, loops = rows_of(term), loop_reductions([term], held)
    if rows is None or not isinstance(rows.size, int) or rows.size >= FEW:
        return None
    streamed = {r.attrs[1] for r in loops}
    for r in every_reduction([term]):
        if is_contraction(r) and not r.dims & streamed and r not in loops:
            if any(_reaches(loop.args[0], r) for loop in loops):
                other = rows_of(substitute(term, {r: _stored(r)}))
                if other is not None and size_key(other) > size_key(rows):
                    return r
    return None


def between_batches(term: Term, rows: Dim | None, held: int) -> Term | None:
    """Scores of a loop that are products for each place of one dim, while its values are products for each of another.

    Whichever of the two the rows are, something is no product of matrices. Scores that are stored are read by kernels
    with rows of their own; that is for scores that take no more memory than something that the loop reads anyway.
    Likewise a part of the scores that is a product for each row or column, where others are products of both.
    """
    across = rows in batch_dims([term])
    for r in loop_reductions([term], held):
        gauge = r.args[0].args[0] if r.args[0].op == "scaled" else None
        if gauge is None or gauge.op == "load":
            continue
        if part := _beside_matrices(gauge, {rows, r.attrs[1]}):
            return part
        outer, inner = batch_of(r), batch_dims([gauge])
        if across and outer - inner and inner - outer and any(_as_large(t, gauge) for t in tensors(r)):
            return gauge
    return None


def of_other_rows(term: Term, rows: Dim | None, held: int) -> Term | None:
    """What products of the rows give, where scores that are stored also weight something that each row has of its own:
    stored as well, it leaves a term that can have other rows."""
    states = [r for r in loop_reductions([term], held) if r.args[0].op == "scaled" and r.args[0].args[0].op == "load"]
    if not any(rows in batch_of(r) for r in states):
        return None
    mine = {mantissa(r) for r in states if rows not in batch_of(r) and is_product(r)}
    return next((n for n in subterms(term) if not mine.isdisjoint(subterms(n)) and any_scale(n, states)), None)


def _beside_matrices(gauge: Term, tile: set[Dim]) -> Term | None:
    """A product for each row or column, of what is read by both, beside a product of rows and columns: with another dim
    than these it is one of matrices, and is stored."""
    products = [r for r in reduces(gauge) if is_contraction(r) and tile <= r.dims]
    single = [r for r in products if batch_of(r) & tile]
    read = lambda r: any(n.op == "load" and tile < n.dims for n in subterms(r))
    return next(filter(read, single), None) if len(single) < len(products) else None


def _as_large(tensor: Tensor, term: Term) -> bool:
    """Whether the tensor takes as much memory as the term, of 4 bytes each; lengths that both have are left aside."""
    mine, theirs = Counter(d.size for d in term.dims), Counter(tensor.shape)
    more, others = list((mine - theirs).elements()), list((theirs - mine).elements())
    held = getattr(torch, tensor.dtype).itemsize * prod(s for s in others if isinstance(s, int))
    return all(isinstance(s, int) for s in more) and 4 * prod(more) <= held


def _stored(r: Term) -> Term:
    dims = sorted(r.dims)
    return load(Tensor("stored", r.dtype, tuple(d.size for d in dims)), *map(iota, dims))


def _maps_values(term: Term, outer: Term, inside: list[Term], held: int, kept: tuple[Dim, ...]) -> bool:
    """A sum within a tile of finished states: a short dim of their values, which the other factor turns into another.

    The states themselves do not know the dim, and what comes out of the sum is kept whole in a tile as well: on the
    grid it would have the states computed again for each of its places.
    """
    dim = outer.attrs[1]
    if outer.attrs[0] != "sum" or outer in loop_reductions([term], held) or is_long(dim, held):
        return False
    if dim in state_dims(inside) or any(dim in batch_dims([r]) for r in inside):
        return False
    fresh = outer.dims - frozenset().union(*(r.dims for r in inside))
    return fresh <= set(kept)


def _reaches(root: Term, node: Term) -> bool:
    return any(t is node for t in subterms(root))


def _smallest_around(body: Term, inside: set[Term], streamed: set[Dim]) -> Term:
    """Down from the body while one operand holds the loops, or one that does has fewer dims; never into a state.

    Of several operands the smallest is stored first: together they may have the dims of no value that was written. What
    has a streamed dim is as large as rows times columns: it is computed again, from states. What reads nothing, as a
    count does, is not worth a kernel.
    """
    while body not in inside and body.op not in ("scale", "mantissa"):
        holders = [a for a in dict.fromkeys(body.args) if any(t in inside for t in subterms(a))]
        reading = [a for a in holders if tensors(a)] or holders
        if len(holders) != 1 and not any(a.dims < body.dims for a in reading) and not body.dims & streamed:
            break
        body = min(reading, key=lambda a: (len(a.dims & streamed), len(a.dims)))
    if body.dtype.startswith("pair"):
        raise NotPlannable("a state inside a reduction of a dim that it depends on cannot be stored as a pair")
    return body


def without(term: Term, rows: Dim, held: int) -> Term | None:
    """A subterm that has loops and does not depend on the rows, as large as can be; one around another comes first.

    What is inside is then computed with it, and stored beside it where it is needed alone: by one kernel's loops.
    A long sum that a tile holds whole counts as a loop: for every tile of rows it would be done again. What reads
    nothing, as a count does, is not worth a kernel.
    """
    loops = set(loop_reductions([term], held))
    holding = {r for r in every_reduction([term]) if tensors(r) and (r in loops or is_long(r.attrs[1], held))}
    for t in subterms(term):  # arguments come first
        if any(a in holding for a in t.args):
            holding.add(t)
    found: set[Term] = set()
    stack, seen = [term], {term}
    while stack:
        node = stack.pop()
        if node in holding and rows not in node.dims and not node.dtype.startswith("pair"):
            found.add(node)
        else:
            fresh = [a for a in node.args if a in holding and a not in seen]
            seen.update(fresh)
            stack.extend(fresh)
    return max(found, key=list(subterms(term)).index, default=None)

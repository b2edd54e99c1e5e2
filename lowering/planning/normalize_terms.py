"""Rewrites of terms before they are planned: divisors, double sums, short sums, flattened dims, shared scales.

No rewrite changes a value. Example: a sum over two coordinates, or over four, is written out and needs no loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf

from ...egraph.terms.index_simplify import floordiv, mod, simplify_index
from ...egraph.terms.ops import const, eq, iota, make, mantissa, reduce, rescaled_sum, scale, scaled, where
from ...egraph.terms.term import Dim, Term
from ...egraph.terms.traversal import all_dims, every_reduction, rebuild, reduces, substitute, subterms
from ..analysis.dim_roles import nodes_between, product_sides
from ..plan.records import Store
from ..plan.term_edits import at_place, unshadowed, with_fresh_bound_dims
from .reshape_dims import fresh


def beside_their_dims(root: Term) -> Term:
    """The same term where no summed factor is divided by what has dims that only the other factor has."""

    def change(node: Term, args: tuple[Term, ...]) -> Term:
        made = node if args == node.args else make(node.op, args, node.attrs)
        if made.op != "reduce" or made.attrs[0] != "sum" or made.args[0].op != "mul":
            return made
        a, b = made.args[0].args
        for x, y in ((a, b), (b, a)):
            if x.op == "div" and not x.args[1].dims <= x.args[0].dims and x.args[1].dims <= y.dims:
                moved = make("mul", (x.args[0], make("mul", (y, make("div", (const(1.0), x.args[1]))))))
                return make("reduce", (moved,), made.attrs) if moved.dtype == made.args[0].dtype else made
        return made

    return rebuild(root, change)


MOST_PLACES = 256  # places that a tile holds


def with_one_inner_dim(root: Term) -> Term:
    """The same term with such sums over one dim each."""

    def change(node: Term, args: tuple[Term, ...]) -> Term:
        made = node if args == node.args else make(node.op, args, node.attrs)
        return _in_one(made) if _is_double(made) else made

    return rebuild(root, change)


def _is_double(r: Term) -> bool:
    """A sum of a sum of products, in which whatever has one of the two dims has the other."""
    if r.op != "reduce" or r.args[0].op != "reduce" or {r.attrs[0], r.args[0].attrs[0]} != {"sum"}:
        return False
    outer, inner, body = r.attrs[1], r.args[0].attrs[1], r.args[0].args[0]
    if not (isinstance(outer.size, int) and isinstance(inner.size, int)) or outer.size * inner.size > MOST_PLACES:
        return False
    nodes = [n for n in subterms(body) if n.op != "iota"]
    return body.op == "mul" and outer != inner and all((outer in n.dims) == (inner in n.dims) for n in nodes)


def _in_one(r: Term) -> Term:
    """Its places run as they lie in memory: the dim that is indexed last changes fastest."""
    body = r.args[0].args[0]
    read = next(n for n in subterms(body) if n.op == "load" and r.attrs[1] in n.dims)
    first, second = sorted((r.attrs[1], r.args[0].attrs[1]), key=lambda d: _last(read, d))
    one = Dim(f"{first.name}_{second.name}", first.size * second.size)
    places = const(second.size)
    change = {iota(first): floordiv(iota(one), places), iota(second): mod(iota(one), places)}
    return make("reduce", (substitute(body, change),), ("sum", one))


def _last(read: Term, dim: Dim) -> int:
    return max(k for k, index in enumerate(read.args) if dim in index.dims)


def prepared(stores: Sequence[Store]) -> list[Store]:
    """The stores with one name for one dim and one state for what two of them need alike."""
    order = tuple(dict.fromkeys(d for store in stores for d in store.order))
    plain = [unshadowed(unflattened(store.term)) for store in stores]
    terms = [written_out(with_one_inner_dim(beside_their_dims(term))) for term in plain]
    terms = _reuse_scales(with_fresh_bound_dims(terms, order))
    return [replace(store, term=term) for store, term in zip(stores, terms, strict=True)]


def _reuse_scales(terms: list[Term]) -> list[Term]:
    """max_j G, and every scale with the gauge G, as the scale of one state with G: that of the fewest dims.

    So that no dim of the values alone (a column of the result) seems to be one that the state depends on: where each
    state has such a dim, the scale is that of a count. And of those the one that waits for the fewest others.
    """
    found = every_reduction(terms)
    rescaled = sorted(filter(is_rescaled, found), key=lambda r: (-len(r.dims), -len(reduces(r))))
    states = {(r.attrs[1], r.args[0].args[0]): scale(_without_values(r)) for r in rescaled}
    mapping = {r: states.get((r.attrs[1], r.args[0])) for r in found if r.attrs[0] == "max"}
    mapping |= {scale(r): states[r.attrs[1], r.args[0].args[0]] for r in rescaled}
    mapping = {term: same for term, same in mapping.items() if same is not None and same is not term}
    return [substitute(term, mapping) for term in terms]


def _without_values(r: Term) -> Term:
    """The state, or a count with its gauge where it has dims that the gauge lacks."""
    gauge = r.args[0].args[0]
    return r if r.dims <= gauge.dims else reduce("rescaled", r.attrs[1], scaled(gauge, const(1.0)))


def is_rescaled(r: Term) -> bool:
    return r.attrs[0] == "rescaled" and r.args[0].op == "scaled"


PLACES = 4  # of a dim that is written out: coordinates
MOST_OPERATIONS = 16  # operations on pairs that are written for one sum: their operands lie in registers all at once


def written_out(root: Term) -> Term:
    """The same term with every such sum over a short dim as a sum of terms."""

    def change(node: Term, args: tuple[Term, ...]) -> Term:
        made = node if args == node.args else make(node.op, args, node.attrs)
        return _terms(made) if made.op == "reduce" and made.attrs[0] == "sum" and _is_short(made) else made

    return rebuild(root, change)


def _is_short(r: Term) -> bool:
    size = r.attrs[1].size
    if r.dtype in ("float16", "bfloat16"):  # a fold adds halves in float32
        return False
    if not isinstance(size, int) or size > PLACES:
        return False
    return 0 < len(nodes_between(r.args[0], r.attrs[1])) * size <= MOST_OPERATIONS


def _terms(r: Term) -> Term:
    terms = [at_place(r.args[0], r.attrs[1], const(place)) for place in range(r.attrs[1].size)]
    while len(terms) > 1:  # by pairs: no chain of additions, each waiting for the one before
        pairs = [make("add", tuple(terms[k : k + 2])) for k in range(0, len(terms) - 1, 2)]
        terms = pairs + terms[2 * len(pairs) :]
    return terms[0]


def unflattened(root: Term) -> Term:
    """The same term with every such reduction as two, where its dim would be a batch of a product."""
    names = {d.name for d in all_dims(root)}

    def change(node: Term, args: tuple[Term, ...]) -> Term:
        made = node if args == node.args else make(node.op, args, node.attrs)
        size = _last_size(made) if made.op == "reduce" else None
        if size is None:
            return made
        monoid, dim = made.attrs
        outer = Dim(fresh(f"{dim.name}_outer", names), dim.size // size)
        inner = Dim(fresh(f"{dim.name}_inner", names), size)
        place = iota(outer) * const(size) + iota(inner)
        part = reduce(monoid, inner, simplify_index(substitute(made.args[0], {iota(dim): place})))
        if monoid != "rescaled":
            return reduce(monoid, outer, part)
        present = where(eq(scale(part), const(-inf)), const(0.0), mantissa(part))  # a mantissa of nothing is no number
        return rescaled_sum(outer, scale(part), present)

    return rebuild(root, change)


def _last_size(r: Term) -> int | None:
    """The number of places of the last of the dims that are one in this reduction."""
    dim, body = r.attrs[1], r.args[0]
    if not isinstance(dim.size, int) or r.dtype in ("float16", "bfloat16"):  # a fold adds halves in float32
        return None
    if not any(dim in one & other for one, other in map(product_sides, reduces(body))):
        return None
    users = [n for n in subterms(body) if iota(dim) in n.args]
    if any(n.op not in ("floordiv", "mod") or n.args[1].op != "const" for n in users):
        return None
    sizes = {n.args[1].attrs[0] for n in users}
    return next((size for size in sizes if len(sizes) == 1 and dim.size % size == 0), None)

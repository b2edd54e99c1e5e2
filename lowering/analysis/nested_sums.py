"""Sums directly inside of a sum, and which of them make one loop over several dims.

A tile that held every index of an inner dim would have three dims, where a product inside of the sums has both dims
beside its rows. So such a loop goes through the tiles of one dim for each index of the others, the dims around it.
Example: Σ_i Σ_m (Σ_d q[m, i, d] · k[j, d]) · q[m, i, e] sums over i, tile by tile, for each m.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import lru_cache

from ...egraph.search.cost import contracts
from ...egraph.terms.ops import const, sum_over, where
from ...egraph.terms.term import Dim, Term
from ...egraph.terms.traversal import every_reduction, factors, operands, reduces, subterms

ZERO = const(0.0)


@dataclass(frozen=True)
class Nest:
    """The sum over all `dims`, whose order does not matter, of the body where every guard holds."""

    dims: tuple[Dim, ...]
    guards: tuple[Term, ...]
    body: Term

    def sum(self, dims: Iterable[Dim]) -> Term:
        """The sum over these dims of the nest's, the first one outermost."""
        result = self.body
        for guard in reversed(self.guards):
            result = where(guard, result, ZERO)
        for dim in reversed(tuple(dims)):
            result = sum_over(dim, result)
        return result


def is_sum(node: Term) -> bool:
    """Whether the node is a sum of floats."""
    return node.op == "reduce" and node.attrs[0] == "sum" and "float" in node.dtype


def nest_of(r: Term) -> Nest:
    """The sum with all sums directly inside of it, through guards, and through factors beside a sum of products.

    A product of matrices stays whole: its sum is none of the nest. No name is captured: what stands outside of an inner
    sum does not know the inner sum's dim.
    """
    dims, body = [r.attrs[1]], r.args[0]
    guards: list[Term] = []
    outside: list[Term] = []
    while True:
        known = frozenset(dims).union(*(part.dims for part in (*guards, *outside)))
        if is_sum(body) and body.attrs[1] not in known:
            dims.append(body.attrs[1])
            body = body.args[0]
        elif body.op == "where" and body.args[2] is ZERO and _leads_to_sum(body.args[1]):
            guards += operands(body.args[0], "and")
            body = body.args[1]
        elif body.op == "mul" and (split := _factor_and_sum(*body.args)):
            outside.append(split[0])
            body = split[1]
        else:
            break
    while body.op == "where" and body.args[2] is ZERO:
        guards += operands(body.args[0], "and")
        body = body.args[1]
    for part in reversed(outside):
        body = body * part
    return Nest(tuple(dims), tuple(guards), body)


def _leads_to_sum(node: Term) -> bool:
    """Whether nothing but guards, and factors beside a sum of products, is around a sum."""
    node = _without_guards(node)
    return is_sum(node) or (node.op == "mul" and _factor_and_sum(*node.args) is not None)


def _without_guards(node: Term) -> Term:
    while node.op == "where" and node.args[2] is ZERO:
        node = node.args[1]
    return node


def _factor_and_sum(*factors: Term) -> tuple[Term, Term] | None:
    """A factor and what leads to the sum of products that it multiplies, where it adds no dim to the sum."""
    for one, other in (factors, factors[::-1]):
        inner = _without_guards(other)
        whole = is_sum(inner) and not reduces(inner.args[0])
        if one.dims <= other.dims and _leads_to_sum(other) and not whole and not _leads_to_sum(one):
            return one, other
    return None


# Loops over several dims


@lru_cache(4096)
def dims_around(r: Term) -> tuple[Dim, ...]:
    """The dims of the sums directly inside of a sum, for each index of which a loop over the sum's own dim runs."""
    if not is_sum(r):
        return ()
    found, body = _inner_sums(r)
    if sums_over_batch(r):
        return tuple(found)
    own, nest = r.attrs[1], {r.attrs[1], *found}
    count = next((n for n, dim in enumerate(found) if not _runs_around(body, own, dim, nest)), len(found))
    return tuple(found[:count])


def _inner_sums(r: Term) -> tuple[list[Dim], Term]:
    """The dims of the sums directly inside of a sum, and what the innermost one adds up."""
    found, body = [], r.args[0]
    while is_sum(body):
        found.append(body.attrs[1])
        body = body.args[0]
    return found, body


def is_batch(dims: Collection[Dim], body: Term) -> bool:
    """Whether all products of rows and columns inside of the body are done for each index of these dims."""
    products = products_of_pairs(body)
    return bool(products) and all(set(dims) <= r.dims - sides_of(r) for r in products)


def products_of_pairs(body: Term) -> set[Term]:
    """The products of matrices inside of a body: sums of a product with rows and columns."""
    return {r for r in reduces(body) if r.attrs[0] == "sum" and contracts(r.args[0]) and len(sides_of(r)) > 1}


@lru_cache(4096)
def sums_over_batch(r: Term) -> bool:
    """Whether this is a sum over the batch of several products inside of it, of which rows and columns are left.

    A tile of one product may hold the batch.
    """
    found, body = _inner_sums(r) if is_sum(r) else ([], r)
    return is_sum(r) and is_batch({r.attrs[1], *found}, body) and len(products_of_pairs(body)) > 1


def body_of(r: Term) -> Term:
    """What a loop adds up of a reduction: its body, or that of the innermost sum that the same loop makes."""
    body = r.args[0]
    for _ in dims_around(r):
        body = body.args[0]
    return body


def reductions(terms: Iterable[Term]) -> list[Term]:
    """Every distinct reduction of the terms, inner ones first, without the sums that the loop of another one makes."""
    return list(_reductions(tuple(terms)))


@lru_cache(1024)
def _reductions(terms: tuple[Term, ...]) -> tuple[Term, ...]:
    """Memoised, because each plan that is tried asks it of every kernel, many times."""
    found = every_reduction(terms)
    inner: set[Term] = set()
    for r in found:
        body = r.args[0]
        for _ in dims_around(r):
            inner.add(body)
            body = body.args[0]
    return tuple(r for r in found if r not in inner)


def with_loops_outermost(r: Term) -> Term:
    """The sum in the order in which `dims_around` finds one loop over several dims; the same sum if it is none."""
    nest = nest_of(r)
    dims = {*nest.dims}
    if len(dims) == len(nest.dims) and is_batch(dims, nest.body) and len(products_of_pairs(nest.body)) > 1:
        return nest.sum(sorted(dims, key=lambda d: (not isinstance(d.size, str), d)))
    own = max((d for d in nest.dims if _around(nest, d)), key=lambda d: _rank(nest, d), default=None)
    if own is None or len(dims) != len(nest.dims):
        return r
    around = _around(nest, own)
    rest = [d for d in nest.dims if d != own and d not in around]
    return nest.sum((own, *sorted(around), *rest))


def _around(nest: Nest, own: Dim) -> list[Dim]:
    """The dims of the nest that a loop over its dim `own` runs around."""
    return [d for d in nest.dims if d != own and _runs_around(nest.body, own, d, {*nest.dims})]


def _runs_around(body: Term, own: Dim, other: Dim, nest: set[Dim]) -> bool:
    """Whether products inside of the body have both dims, `own` as a side, and rows that the nest does not sum.

    No product may lack the other dim: it would be done again for each index.
    """
    products = [r for r in reduces(body) if own in r.dims and r.attrs[0] == "sum" and contracts(r.args[0])]
    paired = [r for r in products if own in sides_of(r) and not sides_of(r) <= nest]
    return bool(paired) and all(other in r.dims for r in paired)


def sides_of(product: Term) -> frozenset[Dim]:
    """The dims of a sum of a product that not every factor has: the rows and the columns of a product of matrices."""
    having = [f.dims for f in factors(product.args[0]) if product.attrs[1] in f.dims]
    return product.dims - frozenset.intersection(*having) if having else frozenset()


def _rank(nest: Nest, dim: Dim) -> tuple:
    """First a dim that guards limit, then the longest one, then the one that lies innermost in memory."""
    last = lambda node: max((axis for axis, index in enumerate(node.args) if dim in index.dims), default=-1)
    loads = (n for n in subterms(nest.body) if n.op == "load" and dim in n.dims)
    size = (True, 0) if not isinstance(dim.size, int) else (False, dim.size)
    return any(dim in guard.dims for guard in nest.guards), size, max(map(last, loads), default=-1), dim

"""Reductions over two dims that a program has flattened into one, as one over each: a product of what the two read is
one of matrices again.

⊕_d f(d // n, d % n) = ⊕_i ⊕_j f(i, j), in any monoid. A pure function over terms, called by prepared.py.
"""

from __future__ import annotations

from math import inf

from ..egraph.index import simplify_index
from ..egraph.ops import const, eq, iota, make, mantissa, reduce, rescaled_sum, scale, where
from ..egraph.term import Dim, Term, all_dims, rebuild, reduces, substitute, subterms
from .dims import product_sides
from .groups import fresh


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

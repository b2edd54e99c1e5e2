"""Two dims that are summed one inside of the other, as one: what is multiplied then has one inner dim, as matrices do.

Σ_p Σ_x a[i, p, x] · b[j, p, x] is one product with places (p, x). The one dim counts all their places, and each of the
two is its quotient or rest. A pure function over terms, called by prepared.py.
"""

from __future__ import annotations

from ..egraph.index import floordiv, mod
from ..egraph.ops import const, iota, make
from ..egraph.term import Dim, Term, rebuild, substitute, subterms

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

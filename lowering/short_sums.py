"""Sums of what two sides give for each place of a short dim, as distances are, written out: one tile less deep.

Σ_d f(a_id, b_jd) = f(a_i0, b_j0) + f(a_i1, b_j1) + ...: in a tile of rows and columns each term takes one register a
pair, and no thread waits for another. A pure function over terms, called by build.py.
"""

from __future__ import annotations

from ..egraph.ops import const, make
from ..egraph.term import Term, rebuild
from .cuts import at_place
from .dims import nodes_between

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
    return isinstance(size, int) and size <= PLACES and 0 < len(nodes_between(r.args[0], r.attrs[1])) * size <= MOST_OPERATIONS


def _terms(r: Term) -> Term:
    terms = [at_place(r.args[0], r.attrs[1], const(place)) for place in range(r.attrs[1].size)]
    while len(terms) > 1:  # by pairs: no chain of additions, each waiting for the one before
        pairs = [make("add", tuple(terms[k : k + 2])) for k in range(0, len(terms) - 1, 2)]
        terms = pairs + terms[2 * len(pairs) :]
    return terms[0]

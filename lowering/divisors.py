"""Divisors by row beside a matrix, moved to the factor that has their dims: the matrix stays one for all rows.

(a / c) · b = a · (b · (1 / c)): one multiplication more for each element of b, and a product of two matrices again, as
where the sum that normalises weights ended up under what mixes them. A pure function over terms, called by build.py.
"""

from __future__ import annotations

from ..egraph.ops import const, make
from ..egraph.term import Term, rebuild


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

"""Finite fills of hidden scores, kept where a base-2 exponential can count with them.

A kernel multiplies scores by log2(e): the least float32, which model libraries fill hidden places with, would become
-inf, and a row of nothing but fills NaN instead of uniform. Called by build.py for the scales of rescaled states.
"""

from __future__ import annotations

from math import inf, isfinite

from ..egraph.ops import const, make, where
from ..egraph.term import Dim, Term

WIDE = ("float32", "float64", "bfloat16")  # dtypes that hold numbers below LOWEST
LOWEST = -(2.0**124)  # eight of these, added up and times log2(e), are still finite in float32


def bounded(scale: Term, dim: Dim) -> Term:
    """The scale with no finite number below LOWEST: literals, and what is read along the loop without being summed."""
    done: dict[Term, Term] = {}

    def visit(node: Term) -> Term:
        if node not in done:
            done[node] = _changed(node, dim, visit)
        return done[node]

    return visit(scale)


def _changed(node: Term, dim: Dim, visit) -> Term:
    if node.op == "const":
        value = node.attrs[0]
        low = isinstance(value, float) and isfinite(value) and value < LOWEST
        return const(LOWEST) if low else node
    if node.op == "load":
        return _clamped(node) if node.dtype in WIDE and dim in node.dims else node
    if node.op == "cast" and node.args[0].op == "load":
        wide = node.args[0].dtype in WIDE and node.dtype in ("float32", "float64")
        return _clamped(node) if wide and dim in node.dims else node
    if node.op == "where":
        condition, yes, no = node.args
        return make("where", (condition, visit(yes), visit(no)))
    if node.op in ("add", "sub", "neg", "cast", "maximum", "minimum"):
        args = tuple(map(visit, node.args)) if node.op != "sub" else (visit(node.args[0]), node.args[1])
        return node if args == node.args else make(node.op, args, node.attrs)
    return node


def _clamped(read: Term) -> Term:
    """What is read, at least LOWEST; an absent score stays absent."""
    return where(make("eq", (read, const(-inf))), const(-inf), make("maximum", (read, const(LOWEST))))

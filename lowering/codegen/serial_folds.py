"""Folds over a dim of what two sides give for each of its places, as distances are: one place after another in a loop.

A tile of rows and columns is then all that registers hold, whatever the dim's length; places of few dims are written
out before (lowering/planning/normalize_terms.py).
"""

from __future__ import annotations

from ...egraph.terms.term import Term
from ..plan.dtypes import HALVES
from .ops import FOLDS, Value, identity

TOGETHER = 4  # of them are written out: their loads need not wait for each other


def step(writer, node: Term) -> Value:
    """The fold as a loop over places, written where the value belongs."""
    monoid, dim = node.attrs
    home, dims = writer.scope_of(node.dims), writer.sort(node.dims)
    dtype = "float64" if node.dtype == "float64" else "float32"
    start = Value(f"tl.full({writer.shape(dims)}, {identity(monoid, dtype)}, tl.{dtype})", dims, dtype)
    total = writer.assign(f"{monoid}_{dim}", start, home)
    place = writer.names.fresh(str(dim))
    with writer.stepping(dim, place) as scope:
        body = writer.value(node.args[0])
        text = f"{writer.align(body, dims)}{'.to(tl.float32)' if body.dtype in HALVES else ''}"
        combined = FOLDS[monoid].combine.format(total.text, text)
    steps = f"0, {dim.size}, num_stages=1, loop_unroll_factor={min(TOGETHER, dim.size)}"
    home.lines.append(f"for {place} in tl.range({steps}):")
    home.lines += [f"    {line}" for line in (*scope.lines, f"{total.text} = {combined}")]
    return total

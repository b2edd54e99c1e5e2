"""Folds over a dim of what two sides give for each of its places: one place after another, in a loop.

A tile of rows and columns is then all that registers hold, whatever the dim's length. The places of a short dim are
written out before, as terms. Example: Σ_d |q[i, d] - k[j, d]|, a distance.
"""

from __future__ import annotations

from ...egraph.terms.term import Term
from ..plan.dtypes import HALVES
from .ops import FOLDS, TileValue, identity
from .tiles import Tiles

UNROLLED_PLACES = 4  # of a loop: the loads of one need not wait for those of another


def serial_fold(writer: Tiles, node: Term) -> TileValue:
    """The fold as a loop over places, written in the scope of its value."""
    monoid, dim = node.attrs
    home, dims = writer.scope_of(node.dims), writer.sort(node.dims)
    dtype = "float64" if node.dtype == "float64" else "float32"
    type_ = writer.type_name(dtype)
    start = TileValue(writer.call("full", writer.shape(dims), identity(monoid, dtype), type_), dims, dtype)
    total = writer.assign(f"{monoid}_{dim}", start, home)
    place = writer.names.fresh(str(dim))
    with writer.stepping(dim, place) as scope:
        body = writer.value(node.args[0])
        widened = f".to({writer.type_name('float32')})" if body.dtype in HALVES else ""
        combined = writer.dialect.fill(FOLDS[monoid].combine, total.text, f"{writer.align(body, dims)}{widened}")
    steps = writer.call("range", 0, dim.size, num_stages=1, loop_unroll_factor=min(UNROLLED_PLACES, dim.size))
    home.lines.append(f"for {place} in {steps}:")
    home.lines += [f"    {line}" for line in (*scope.lines, f"{total.text} = {combined}")]
    return total

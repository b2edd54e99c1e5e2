"""Folds over a dim of what two sides give for each of its places, as distances are: one place after another in a loop.

A tile of rows and columns is then all that registers hold, whatever the dim's length; places of few dims are written
out before (lowering/planning/normalize_terms.py).
"""

from __future__ import annotations

from ...egraph.terms.term import Dim, Term, reduces, subterms
from ..analysis.dim_roles import nodes_between, sides_between
from ..plan.records import Kernel
from .ops import FOLDS, HALVES, Value, identity

LEAST = 2  # places of a loop
TOGETHER = 4  # of them are written out: their loads need not wait for each other
SEVERAL = 4  # operations on pairs, from which on their operands are many


def stepped(kernel: Kernel, nodes) -> set[Dim]:
    """The dims that are folded so wherever they are folded."""
    folds: dict[Dim, list[Term]] = {}
    for node in (n for n in nodes if n.op == "reduce"):
        folds.setdefault(node.attrs[1], []).append(node)
    placed = {*kernel.grid, *kernel.tiled, *(loop.dim for loop in kernel.loops)}
    kept = {d for store in kernel.stores for d in store.order}
    return {d for d, found in folds.items() if d not in placed | kept and all(_is_stepped(r) for r in found)}


def several_pairs(nodes) -> bool:
    """Whether scores take several operations on pairs that are written out."""
    return sum(1 for n in nodes if sides_between(n)) >= SEVERAL


def _is_stepped(r: Term) -> bool:
    monoid, dim = r.attrs
    if monoid not in ("sum", "max", "min") or "float" not in r.dtype or reduces(r.args[0]):
        return False
    inside = [n for n in subterms(r.args[0]) if dim in n.dims]
    read = [index for n in inside if n.op == "load" for index in n.args if dim in index.dims]
    plain = all(index.op == "iota" for index in read) and all(n.op != "iota" or n in read for n in inside)
    return bool(nodes_between(r.args[0], dim)) and plain and isinstance(dim.size, int) and dim.size >= LEAST


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

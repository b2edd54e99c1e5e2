"""A kernel's loops as text: what programs share out, which loop fills which state by what, and what is stored.

Example: `for j, tile by tile: j < i + 1` over `s0 ← ⊕ ⟨scores, v⟩`, then `out[b, h, i, e] = mantissa(s0.0)`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ..egraph.terms.ops import var
from ..egraph.terms.printing import show
from ..egraph.terms.term import Dim, Term
from ..egraph.terms.traversal import substitute
from ..lowering.masks.loop_ranges import without_clamps
from ..lowering.plan.records import Accumulator, Kernel, Loop, Range, Store

Names = Mapping[Term, Term]
SIGNS = {"rescaled": "⊕", "sum": "Σ", "prod": "Π"}


def loop_nest(kernel: Kernel) -> str:
    """The loops of a kernel, a line for each loop, state and store."""
    return "\n".join(_lines(kernel))


def _lines(kernel: Kernel) -> Iterator[str]:
    indent = 0
    if kernel.grid:
        yield f"for each {', '.join(map(str, kernel.grid))}, in parallel"
        indent += 1
    if kernel.tiled:
        yield f"{'  ' * indent}for each tile of {' and '.join(map(str, kernel.tiled))}, in parallel"
        indent += 1
    if kernel.held:
        yield f"{'  ' * indent}whole in a tile: {', '.join(map(str, kernel.held))}"
    names: dict[Term, Term] = {}
    for loop in kernel.loops:
        yield from ("  " * indent + line for line in _loop(loop, names))
        for accumulator in loop.accumulators:
            names |= _finished(accumulator)
        yield from ("  " * (indent + 1) + _store(store, names) for store in kernel.written_by(loop))
    yield from ("  " * indent + _store(store, names) for store in kernel.written_by(None))


def _finished(accumulator: Accumulator) -> dict[Term, Term]:
    """The reductions that a state holds when its loop has ended, by the names that the text gives them."""
    several = len(accumulator.reductions) > 1
    named = ((f"{accumulator.name}.{n}" if several else accumulator.name) for n in range(len(accumulator.reductions)))
    return {term: var(name, term.dtype) for term, name in zip(accumulator.reductions, named)}


def _loop(loop: Loop, names: Names) -> Iterator[str]:
    for dim in loop.outer:
        yield f"for each {dim}, one after the other"
    how = "tile by tile" if loop.tile else "one after the other"
    limits = " or ".join(_range(found, loop.dim) for found in loop.ranges) if loop.guard is not None else ""
    yield f"for {loop.dim}, {how}{f', where {limits}' if limits else ''}"
    if loop.guard is not None and not loop.limits_only:
        yield f"  only elements with {_show(loop.guard, names)}"
    for accumulator in loop.accumulators:
        yield from (f"  {line}" for line in _state(accumulator, names))


def _range(found: Range, dim: Dim) -> str:
    bound = lambda limit: show(without_clamps(limit.bound, dim))
    limits = [f"{dim} ≥ {bound(x)}" for x in found.lowers] + [f"{dim} < {bound(x)}" for x in found.uppers]
    return " and ".join(limits) or "anywhere"


def _state(accumulator: Accumulator, names: Names) -> Iterator[str]:
    sign = SIGNS.get(accumulator.monoid, accumulator.monoid)
    if accumulator.gauge is not None:
        yield f"{accumulator.name}: {sign} with the scale {_show(accumulator.gauge, names)}, of the values"
        yield from (f"  {name} ← {_show(x, names)}" for name, x in zip(_names_of(accumulator), accumulator.values))
    else:
        yield from (f"{n} ← {sign} {_show(x, names)}" for n, x in zip(_names_of(accumulator), accumulator.values))


def _names_of(accumulator: Accumulator) -> list[str]:
    several = len(accumulator.values) > 1
    return [f"{accumulator.name}.{n}" if several else accumulator.name for n in range(len(accumulator.values))]


def _store(store: Store, names: Names) -> str:
    places = ", ".join(map(show, store.places) if store.places else map(str, store.order))
    return f"{store.output.name}[{places}] {'+=' if store.adds else '='} {_show(store.term, names)}"


def _show(term: Term, names: Names) -> str:
    return show(substitute(term, dict(names)))

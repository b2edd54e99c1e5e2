"""What one kernel stores for others, written by the loop of one of these instead: the loop has those tiles anyway.

A kernel of rows and columns stores once what the loops of later ones go through. One of those that has the same rows,
with the columns as its loop, computes a tile where it would read it, and writes it for the others: one launch and one
reading less.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ...egraph.terms.ops import iota, load
from ...egraph.terms.term import Term
from ...egraph.terms.traversal import all_dims, subterms, tensors
from ..plan.records import Accumulator, Kernel
from ..plan.term_edits import replace_from_above, with_fresh_bound_dims


def absorbed(kernels: Sequence[Kernel]) -> list[Kernel]:
    """The kernels with each that a later one's loop can do the work of in that one, in its own place of the order."""
    kernels = list(kernels)
    for place, early in enumerate(kernels):
        later = kernels[place + 1 :]
        waits = {s.output.name for k in kernels[place:] for s in k.stores} - {s.output.name for s in early.stores}
        reader = next((k for k in later if _takes(k, early) and waits.isdisjoint(t.name for t in k.inputs)), None)
        if reader is not None:
            kernels[place] = _writing(reader, early)
            kernels.remove(reader)
            return absorbed(kernels)
    return kernels


def _takes(reader: Kernel, early: Kernel) -> bool:
    """Whether the reader's loop goes through tiles of what the early kernel stores, each once and whole."""
    if early.loops or len(early.stores) != 1 or len(reader.loops) != 1:
        return False
    (loop,), (store,) = reader.loops, early.stores
    alike = {*store.order} - {*early.grid} == {reader.rows, loop.dim} and {*reader.grid} == {*early.grid}
    wanted = load(store.output, *map(iota, store.order))
    read = {n for term in _terms(reader) for n in subterms(term) if n.op == "load" and n.attrs[0] == store.output}
    return loop.guard is None and alike and read == {wanted} and not _clash(reader, early)


def _clash(reader: Kernel, early: Kernel) -> bool:
    """Whether two dims of different sizes have one name."""
    known = {d.name: d for term in _terms(reader) for d in all_dims(term)}
    return any(known.get(d.name, d) != d for term in _terms(early) for d in all_dims(term))


def _terms(kernel: Kernel) -> list[Term]:
    return [store.term for store in kernel.stores]


def _writing(reader: Kernel, early: Kernel) -> Kernel:
    """The reader with what it read computed, and written by its loop."""
    (store,), (loop,) = early.stores, reader.loops
    own = tuple(dict.fromkeys(d for s in reader.stores for d in s.order if d not in store.order))
    (term,) = with_fresh_bound_dims([store.term], own)
    change = {load(store.output, *map(iota, store.order)): term}
    stores = tuple(replace(s, term=replace_from_above(s.term, change)) for s in reader.stores)
    states = tuple(_changed(state, change) for state in loop.accumulators)
    held = [d for d in all_dims(term) if d not in (*reader.grid, *reader.tiled, loop.dim)]
    stores = (*stores, replace(store, term=term))
    return replace(
        reader,
        held=tuple(dict.fromkeys((*held, *reader.held))),
        loops=(replace(loop, accumulators=states),),
        stores=stores,
        inputs=tuple(dict.fromkeys(t for s in stores for t in tensors(s.term))),
    )


def _changed(state: Accumulator, change: dict[Term, Term]) -> Accumulator:
    new = lambda term: replace_from_above(term, change)
    gauge = new(state.gauge) if state.gauge is not None else None
    return replace(
        state, gauge=gauge, values=tuple(map(new, state.values)), reductions=tuple(map(new, state.reductions))
    )

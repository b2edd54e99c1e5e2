"""The pass that inlines a producer kernel into a consumer whose loop visits the same tiles.

It saves one launch and one read of what the producer stores. Invariant: each tile is still stored exactly once, for the
other consumers. Example: scores that two kernels read are computed by the loop of the first one, which stores them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ...egraph.terms.ops import iota, load
from ...egraph.terms.term import Term
from ...egraph.terms.traversal import all_dims, subterms, tensors
from ..plan.records import Accumulator, Kernel
from ..plan.term_edits import replace_from_above, with_fresh_bound_dims
from .planning_state import Planning


def inline_producers(planning: Planning) -> Planning:
    """A pass: inlines producers into consumers, and names the kernels by their place in launch order."""
    kernels = with_producers_inlined(planning.kernels)
    return replace(planning, kernels=tuple(replace(kernel, name=f"kernel{n}") for n, kernel in enumerate(kernels)))


def with_producers_inlined(kernels: Sequence[Kernel]) -> list[Kernel]:
    """The kernels in launch order, with each producer that a consumer can inline replaced by this consumer."""
    kernels = list(kernels)
    for place, producer in enumerate(kernels):
        later = kernels[place + 1 :]
        own = {store.output.name for store in producer.stores}
        waits = {store.output.name for kernel in kernels[place:] for store in kernel.stores} - own
        ready = (kernel for kernel in later if waits.isdisjoint(t.name for t in kernel.inputs))
        consumer = next((kernel for kernel in ready if _can_inline(kernel, producer)), None)
        if consumer is not None:
            kernels[place] = _inlined(consumer, producer)
            kernels.remove(consumer)
            return with_producers_inlined(kernels)
    return kernels


def _can_inline(consumer: Kernel, producer: Kernel) -> bool:
    """Whether the consumer's loop goes through tiles of what the producer stores, each once and whole."""
    if producer.loops or len(producer.stores) != 1 or len(consumer.loops) != 1 or consumer.loops[0].guard is not None:
        return False
    return _same_tiles(consumer, producer) and _reads_as_stored(consumer, producer) and not _clash(consumer, producer)


def _same_tiles(consumer: Kernel, producer: Kernel) -> bool:
    (loop,), (store,) = consumer.loops, producer.stores
    inside = {*store.order} - {*producer.grid}
    return inside == {consumer.rows, loop.dim} and {*consumer.grid} == {*producer.grid}


def _reads_as_stored(consumer: Kernel, producer: Kernel) -> bool:
    """Whether each read of the stored tensor is at the coordinates at which it is stored."""
    (store,) = producer.stores
    read = {n for term in _terms(consumer) for n in subterms(term) if n.op == "load" and n.attrs[0] == store.output}
    return read == {load(store.output, *map(iota, store.order))}


def _clash(consumer: Kernel, producer: Kernel) -> bool:
    """Whether two dims of different sizes have one name."""
    known = {d.name: d for term in _terms(consumer) for d in all_dims(term)}
    return any(known.get(d.name, d) != d for term in _terms(producer) for d in all_dims(term))


def _terms(kernel: Kernel) -> list[Term]:
    return [store.term for store in kernel.stores]


def _inlined(consumer: Kernel, producer: Kernel) -> Kernel:
    """The consumer that computes and stores what it read."""
    (store,), (loop,) = producer.stores, consumer.loops
    own = tuple(dict.fromkeys(d for s in consumer.stores for d in s.order if d not in store.order))
    (term,) = with_fresh_bound_dims([store.term], own)
    change = {load(store.output, *map(iota, store.order)): term}
    stores = tuple(replace(s, term=replace_from_above(s.term, change)) for s in consumer.stores)
    accumulators = tuple(_changed(accumulator, change) for accumulator in loop.accumulators)
    held = [d for d in all_dims(term) if d not in (*consumer.grid, *consumer.tiled, loop.dim)]
    stores = (*stores, replace(store, term=term))
    return replace(
        consumer,
        held=tuple(dict.fromkeys((*held, *consumer.held))),
        loops=(replace(loop, accumulators=accumulators),),
        stores=stores,
        inputs=tuple(dict.fromkeys(t for s in stores for t in tensors(s.term))),
    )


def _changed(accumulator: Accumulator, change: dict[Term, Term]) -> Accumulator:
    new = lambda term: replace_from_above(term, change)
    return replace(
        accumulator,
        gauge=new(accumulator.gauge) if accumulator.gauge is not None else None,
        values=tuple(map(new, accumulator.values)),
        reductions=tuple(map(new, accumulator.reductions)),
    )

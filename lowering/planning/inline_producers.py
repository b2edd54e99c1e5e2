"""The passes that let a loop store what another kernel would: something for each row and column of the loop's tiles.

The loop has computed it anyway, or would read it. Invariant: each tile is still stored exactly once. Example: scores
that two kernels read are computed by the loop of the first one, which stores them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from ...egraph.terms.ops import iota, load
from ...egraph.terms.term import Dim, Term
from ...egraph.terms.traversal import all_dims, rename_dims, subterms, tensors
from ..analysis.nested_sums import ZERO, products_of_pairs
from ..masks.loop_ranges import conjuncts
from ..plan.records import Accumulator, Kernel, Loop, Store
from ..plan.term_edits import replace_from_above, with_fresh_bound_dims
from .planning_state import Planning

MIN_PRODUCTS = 2  # that a loop spares when it writes what they make; with one, a kernel of its own is as fast


def inline_producers(planning: Planning) -> Planning:
    """A pass: inlines producers into consumers, and names the kernels by their place in launch order."""
    kernels = with_producers_inlined(planning.kernels)
    return replace(planning, kernels=tuple(replace(kernel, name=f"kernel{n}") for n, kernel in enumerate(kernels)))


# Stores of pairs


def write_pairs_in_loops(planning: Planning) -> Planning:
    """A pass: what a kernel stores for each row and column is stored by a loop that has the same products anyway."""
    return replace(planning, kernels=tuple(with_pairs_in_loops(planning.kernels)))


def with_pairs_in_loops(kernels: Sequence[Kernel]) -> list[Kernel]:
    """The kernels in launch order, without those whose only store another one's loop writes."""
    kernels = list(kernels)
    for alone in kernels:
        found = [(k, store) for k in kernels if (store := _as_written_by(k, alone)) and _is_in_time(k, alone, kernels)]
        if found:
            kernel, store = max(found, key=lambda pair: pair[1].order[-1] == pair[0].loops[0].dim)
            kernels[kernels.index(kernel)] = _with_written(kernel, store)
            kernels.remove(alone)
            return with_pairs_in_loops(kernels)
    return kernels


def _as_written_by(kernel: Kernel, alone: Kernel) -> Store | None:
    """The only store of a kernel without loops as another kernel's loop writes it; None if that loop cannot.

    The store's products are those of the loop, and where the loop's guard keeps nothing, the store's term is 0.
    """
    if alone.loops or len(alone.stores) != 1 or len(kernel.loops) != 1 or kernel.columns:
        return None
    (store,), (loop,) = alone.stores, kernel.loops
    column = _column_of(kernel, alone)
    moved = None if column is None else _with_dim(store, column, loop.dim)
    if moved is None or not _has_products(loop, moved.term) or not _vanishes_outside(loop.guard, moved.term):
        return None
    return moved


def _column_of(kernel: Kernel, alone: Kernel) -> Dim | None:
    """The axis of a kernel's store that the other kernel's loop runs along, if all other axes are that kernel's."""
    (store,), (loop,) = alone.stores, kernel.loops
    columns = [d for d in store.order if d not in alone.grid and d != kernel.rows]
    if loop.outer or loop.finite_mask or kernel.rows not in store.order or _long(alone.grid) != _long(kernel.grid):
        return None
    return columns[0] if len(columns) == 1 and columns[0].size == loop.dim.size else None


def _long(dims: Iterable[Dim]) -> set[Dim]:
    return {d for d in dims if d.size != 1}


def _with_dim(store: Store, old: Dim, new: Dim) -> Store | None:
    """The store with another name of a dim; None if a reduction binds that name."""
    if old == new:
        return store
    if new in all_dims(store.term):
        return None
    order = tuple(new if d == old else d for d in store.order)
    term, *places = (rename_dims(term, {old: new}) for term in (store.term, *store.places))
    return Store(term, store.output, order, tuple(places))


def _has_products(loop: Loop, term: Term) -> bool:
    """Whether the term has enough products of rows and columns, all of them products of the loop's accumulators."""
    bodies = [body for a in loop.accumulators for body in (a.gauge, *a.values) if body is not None]
    known = {node for body in bodies for node in subterms(body)}
    products = products_of_pairs(term)
    return len(products) >= MIN_PRODUCTS and products <= known


def _vanishes_outside(guard: Term | None, term: Term) -> bool:
    """Whether the term is 0 wherever the guard is false."""
    kept: set[Term] = set()
    while term.op in ("cast", "where"):
        if term.op == "where" and term.args[2] is not ZERO:
            break
        kept |= set(conjuncts(term.args[0])) if term.op == "where" else set()
        term = term.args[0] if term.op == "cast" else term.args[1]
    return guard is None or kept.issuperset(conjuncts(guard))


def _is_in_time(kernel: Kernel, alone: Kernel, kernels: Sequence[Kernel]) -> bool:
    """Whether the kernel runs after all that the other one reads, and before all that read the other one."""
    place, own = kernels.index(kernel), {store.output for store in alone.stores}
    later = {store.output for other in kernels[place:] for store in other.stores}
    readers = (other for other in kernels[: place + 1] if own & {*other.inputs})
    return later.isdisjoint(alone.inputs) and not any(readers)


def _with_written(kernel: Kernel, store: Store) -> Kernel:
    """The kernel with one more store, which its loop writes."""
    (loop,) = kernel.loops
    grid = (*kernel.grid, *(d for d in store.order if d not in (*kernel.grid, kernel.rows, loop.dim)))
    held = [d for d in all_dims(store.term) if d not in (*grid, *kernel.tiled, loop.dim)]
    stores = (*kernel.stores, store)
    inputs = tuple(dict.fromkeys(t for s in stores for t in tensors(s.term)))
    return replace(kernel, grid=grid, held=tuple(dict.fromkeys((*held, *kernel.held))), stores=stores, inputs=inputs)


# Producers


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
    if any(store.places for store in producer.stores):
        return False
    if producer.loops or len(producer.stores) != 1 or len(consumer.loops) != 1 or consumer.loops[0].guard is not None:
        return False
    if consumer.around:
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

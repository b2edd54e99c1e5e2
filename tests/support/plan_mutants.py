"""Plans with one thing changed in their records, each with a name: what a reader of plans has to notice.

Derived from the fields of records, for any plan. Most mean something else than the plan; a limit that is looser than it
has to be, say, does not.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations

from onepass.egraph.terms.ops import const
from onepass.lowering.plan.records import Accumulator, BlockMap, Kernel, Limit, Loop, Plan, Range, Store

Named = Iterator[tuple[str, object]]
OTHER_MONOIDS = {"sum": ("max", "prod"), "max": ("sum", "min"), "min": ("max",), "prod": ("sum",), "any": ("all",),
                 "all": ("any",), "rescaled": ("sum",)}  # fmt: skip


def mutants(plan: Plan) -> Iterator[tuple[str, Plan]]:
    """Every mutant of a plan."""
    for what, kernels in _of_one(plan.kernels, _kernels):
        yield what, replace(plan, kernels=kernels)
    for n in range(len(plan.kernels)):
        kernels = plan.kernels[:n] + plan.kernels[n + 1 :]
        yield "kernel dropped", replace(plan, kernels=kernels)
    for n, m in combinations(range(len(plan.kernels)), 2):
        kernels = [*plan.kernels]
        kernels[n], kernels[m] = kernels[m], kernels[n]
        yield "kernels swapped", replace(plan, kernels=tuple(kernels))
    if len(plan.outputs) > 1:
        yield "outputs swapped", replace(plan, outputs=plan.outputs[::-1])


def _of_one(items: tuple, change) -> Iterator[tuple[str, tuple]]:
    """The items with one of them changed."""
    for n, item in enumerate(items):
        for what, other in change(item):
            yield what, (*items[:n], other, *items[n + 1 :])


def _with(record, name: str, change) -> Named:
    """The record with one item of a field changed."""
    for what, items in _of_one(getattr(record, name), change):
        yield what, replace(record, **{name: items})


def _kernels(kernel: Kernel) -> Named:
    yield from _with(kernel, "loops", _loops)
    yield from _with(kernel, "stores", _stores)
    for n in range(len(kernel.stores)):
        yield "store dropped", replace(kernel, stores=kernel.stores[:n] + kernel.stores[n + 1 :])
    for n in range(len(kernel.loops)):
        yield "loop dropped", replace(kernel, loops=kernel.loops[:n] + kernel.loops[n + 1 :])
    if len(kernel.loops) > 1:
        yield "loops reversed", replace(kernel, loops=kernel.loops[::-1])
    for n, dim in enumerate(kernel.grid):
        if dim.size != 1:
            yield "grid dim dropped", replace(kernel, grid=kernel.grid[:n] + kernel.grid[n + 1 :])
    for n in range(len(kernel.inputs)):
        yield "input dropped", replace(kernel, inputs=kernel.inputs[:n] + kernel.inputs[n + 1 :])
    if kernel.rows is not None:
        yield "rows are held", replace(kernel, rows=None, columns=(), held=(*kernel.held, *kernel.tiled))
        yield "rows on the grid, too", replace(kernel, grid=(*kernel.grid, kernel.rows))


def _loops(loop: Loop) -> Named:
    yield from _with(loop, "accumulators", _accumulators)
    yield from _with(loop, "ranges", _ranges)
    if len(loop.ranges) > 1:
        for n in range(len(loop.ranges)):
            yield "range dropped", replace(loop, ranges=loop.ranges[:n] + loop.ranges[n + 1 :])
    yield "no range", replace(loop, ranges=())
    if loop.guard is not None:
        yield "guard dropped", replace(loop, guard=None)
        yield "guard dropped everywhere", replace(loop, guard=None, ranges=(Range((), (), True),), map=None)
        yield "guard negated", replace(loop, guard=~loop.guard)
        yield "finite mask flag", replace(loop, finite_mask=not loop.finite_mask)
        for n, part in enumerate(loop.guard.args if loop.guard.op == "and" else ()):
            yield f"guard weakened {n}", replace(loop, guard=part)
    if loop.map is not None:
        for what, found in _maps(loop.map):
            yield what, replace(loop, map=found)
    if loop.part is not None:
        yield "part dropped", replace(loop, part=None)
    if loop.outer:
        yield "outer dims dropped", replace(loop, outer=())
    if len(loop.outer) > 1:
        yield "outer dims reversed", replace(loop, outer=loop.outer[::-1])


def _maps(found: BlockMap) -> Named:
    yield "map of the negated guard", replace(found, guard=~found.guard)
    yield "map's finite mask flag", replace(found, finite_mask=not found.finite_mask)
    if found.dims:
        yield "map without a dim", replace(found, dims=found.dims[1:])
    if found.rows:
        yield "map without rows", replace(found, rows=())


def _ranges(found: Range) -> Named:
    yield "exact flag", replace(found, exact=not found.exact)
    for side in ("uppers", "lowers"):
        limits = getattr(found, side)
        for n in range(len(limits)):
            yield f"{side}: limit dropped", replace(found, **{side: limits[:n] + limits[n + 1 :]})
        for what, changed in _of_one(limits, _limits):
            yield f"{side}: {what}", replace(found, **{side: changed})


def _limits(limit: Limit) -> Named:
    yield "one less", replace(limit, bound=limit.bound - const(1))
    yield "one more", replace(limit, bound=limit.bound + const(1))
    yield "direction", replace(limit, rising=not limit.rising)


def _accumulators(found: Accumulator) -> Named:
    for monoid in OTHER_MONOIDS[found.monoid]:
        yield f"{found.monoid} as {monoid}", replace(found, monoid=monoid)
    if found.gauge is not None:
        yield "gauge scaled", replace(found, gauge=found.gauge * const(1.0009765625))
        yield "gauge shifted by its place", replace(found, gauge=found.gauge + found.gauge)
    if found.monoid not in ("any", "all"):
        for n, value in enumerate(found.values):
            changed = value + value if value.dtype != "bool" else ~value
            yield "value doubled", replace(found, values=(*found.values[:n], changed, *found.values[n + 1 :]))
    if len(found.values) > 1:
        yield "values reversed", replace(found, values=found.values[::-1])
        yield "reductions reversed", replace(found, reductions=found.reductions[::-1])
        totals = (0,) * len(found.values) if not found.added_to else ()
        yield "other totals", replace(found, added_to=totals)


def _stores(store: Store) -> Named:
    if store.term.dtype not in ("bool",):
        yield "stored twice as large", replace(store, term=store.term + store.term)
    for n, m in combinations(range(len(store.order)), 2):
        order = [*store.order]
        order[n], order[m] = order[m], order[n]
        if order[n] != order[m]:
            yield "axes swapped", replace(store, order=tuple(order))
    if store.output.dtype == "float32":
        yield "stored as whole numbers", replace(store, output=replace(store.output, dtype="int32"))
    yield "combined otherwise", replace(store, combine="set" if store.adds else "add")
    for n, place in enumerate(store.places):
        moved = (*store.places[:n], place + const(1), *store.places[n + 1 :])
        yield "place moved", replace(store, places=moved)
    if store.places:
        yield "places dropped", replace(store, places=())

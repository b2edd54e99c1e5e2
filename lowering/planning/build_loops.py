"""The passes of the stage `kernels` that give kernels their stores and loops, and loops their masks.

Invariant: a loop's reductions depend only on dims outside of the loop and on finished reductions of earlier loops.
Example: the maximum over j and the sum of exp(x - maximum) over j are two loops; a softmax state is one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from ...egraph.terms.ops import MONOIDS, const, mantissa, scale, where
from ...egraph.terms.term import Dim, Term
from ...egraph.terms.traversal import all_dims, every_reduction, reduces, rename_dims, subterms, tensors
from ..analysis.dim_roles import (
    batch_dims,
    columns_of,
    compared_dims,
    computed,
    loop_dims,
    loop_reductions,
    repeated_dims,
    sum_factors,
)
from ..analysis.exact_products import with_exact
from ..analysis.nested_sums import body_of, dims_around, reductions, sums_over_batch
from ..masks.finite_masks import finite_mask, keeps_some, with_finite_mask_as_guard
from ..masks.loop_ranges import block_map, conjunction, conjuncts, ranges
from ..plan.queries import read_by, roots
from ..plan.records import Accumulator, BlockMap, Kernel, Loop, NotPlannable, Range, Store
from ..plan.term_edits import renaming
from ..plan.thresholds import MIN_ROWS_OF_A_PRODUCT
from .kernel_shape import kernel_shape
from .normalize_terms import is_rescaled
from .planning_state import KernelShape, Planning

Peeled = tuple[tuple[Term, ...], Term | None, Term]  # conjuncts of the guard, scores, value


# Stores to kernels


def name_axes_alike(planning: Planning) -> Planning:
    """A pass: a part whose loop is another store's with other names of axes gets these names: both may share it then.

    Example: a loss sums over its rows j the logarithm that is stored for a backward as well. The part that it sums is
    stored for rows of another name, since j is an axis of what is saved.
    """
    stores = [*planning.stores]
    for n, store in enumerate(stores):
        others = (other for k, other in enumerate(stores) if k != n)
        if store.output.name not in planning.results and not store.places:
            stores[n] = next(filter(None, (_named_as(store, other, planning) for other in others)), store)
    renamed = [a for a, b in zip(stores, planning.stores, strict=True) if a is not b]
    if not renamed:
        return planning
    shapes = {store.output.name: kernel_shape((store,), planning) for store in renamed}
    return replace(planning, stores=tuple(stores), shapes={**planning.shapes, **shapes})


def _named_as(store: Store, other: Store, planning: Planning) -> Store | None:
    """The store with the names of axes by which a loop of its is one of the other store; None if none is, or is now."""
    loops = [loop_reductions([one.term], planning.held_limit) for one in (store, other)]
    found = (renaming(mine, its) for mine in loops[0] for its in loops[1] if len(mine.dims) == len(its.dims))
    names = next(filter(None, found), {})
    axes = {dim: names[dim] for dim in store.order if names.get(dim, dim) != dim}
    taken = {*store.order, *all_dims(store.term)} - axes.keys()
    if not axes or taken & {*axes.values()} or not {*axes.values()} <= {*other.order}:
        return None
    bound = {dim: name for dim, name in names.items() if dim not in store.order and name not in taken}
    term = rename_dims(store.term, axes | bound)
    return replace(store, term=term, order=tuple(axes.get(dim, dim) for dim in store.order))


def group_stores(planning: Planning) -> Planning:
    """A pass: kernels without loops, in launch order; stores that do not wait for one another may share a kernel.

    Those that wait for equally many others come first. A store may wait longer, for a kernel that it fits.
    """
    level = _levels(planning.stores)
    groups: list[tuple[Store, ...]] = []
    for store in sorted(level, key=level.__getitem__):
        at = level[store]
        fit = [n for n, g in enumerate(groups) if _may_join(groups, n, store) and _fits(planning, g, store)]
        number = max(fit, key=lambda n: (max(level[s] for s in groups[n]) == at, -n), default=None)
        if number is None:
            groups.append((store,))
        else:
            groups[number] = (*groups[number], store)
    groups = _in_launch_order(sorted(groups, key=lambda group: max(level[store] for store in group)))
    shapes = [kernel_shape(group, planning) for group in groups]
    return replace(
        planning,
        kernels=tuple(map(_without_loops, groups, shapes)),
        shape_reasons=tuple(map(_choice, groups, shapes)),
    )


def _levels(stores: Iterable[Store]) -> dict[Store, int]:
    """For each store, how many others have to come before it, one after another."""
    level: dict[Store, int] = {}
    for store in stores:
        needed = {*tensors(store.term)}
        level[store] = 1 + max((n for other, n in level.items() if other.output in needed), default=-1)
    return level


def _may_join(groups: Sequence[tuple[Store, ...]], number: int, store: Store) -> bool:
    """Whether no group would wait for itself if the store joined this one."""
    joined = [(*group, store) if n == number else group for n, group in enumerate(groups)]
    return len(_in_launch_order(joined)) == len(joined)


def _in_launch_order(groups: Iterable[tuple[Store, ...]]) -> list[tuple[Store, ...]]:
    """The groups, each after those that it reads of; without those that wait for themselves."""
    waiting, found = list(groups), []
    made = {store.output for group in waiting for store in group}
    while ready := next((g for g in waiting if made.isdisjoint(t for s in g for t in tensors(s.term))), None):
        found.append(ready)
        waiting.remove(ready)
        made -= {store.output for store in ready}
    return found


def _without_loops(stores: tuple[Store, ...], shape: KernelShape) -> Kernel:
    inputs = read_by(stores)
    row_tile = f"{shape.rows.name}_tile" if shape.rows else ""
    return Kernel("", shape.grid, shape.rows, row_tile, shape.held, (), stores, inputs)


def _choice(stores: Sequence[Store], shape: KernelShape) -> str:
    return f"{', '.join(store.output.name for store in stores)}: the rows are {shape.rows}, {shape.reason}"


def _fits(planning: Planning, group: Sequence[Store], store: Store) -> bool:
    """Whether the store's loops run over what the group's loops run over, tile by tile alike, with work in common."""
    whole = (*group, store)
    if not _share_work(planning, group, store) or _only_read_in_common(planning, group, store):
        return False
    if _compared(planning, group) != _compared(planning, (store,)):
        return False  # a loop compares all of its sums with the places of a dim, or none
    shape = kernel_shape(whole, planning)
    if {r.attrs[1] for r in every_reduction([s.term for s in whole])} & {*shape.grid, shape.rows}:
        return False  # what one of them sums over is a dim of the other's result
    alone = [kernel_shape(stores, planning).rows for stores in (group, (store,))]
    if any(rows != shape.rows for rows in alone) and not _scores_of(group) & _scores_of((store,)):
        return False
    needed = {*(d for d in shape.grid if d.size != 1), *([shape.rows] if shape.rows else [])}
    return all(needed <= {*s.order} for s in whole)


def _compared(planning: Planning, stores: Sequence[Store]) -> set[Dim]:
    """The dims with whose places loops of these stores compare an index of each pair."""
    return compared_dims(loop_reductions([s.term for s in stores], planning.held_limit))


def _share_work(planning: Planning, group: Sequence[Store], store: Store) -> bool:
    """Whether in a common kernel loops of both read or reduce the same along a dim, or tiles hold the same product."""
    if _held_products(planning, group) & _held_products(planning, (store,)):
        return True
    terms = [[s.term for s in stores] for stores in ([store], group)]
    looped = {*loop_reductions([*terms[0], *terms[1]], planning.held_limit)}
    loops = [looped & {*reductions(part)} for part in terms]
    mine, theirs = ({t for r in found for t in subterms(r)} for found in loops)
    dims = {r.attrs[1] for found in loops for r in found}
    return any(t.dims & dims and t.op in ("load", "reduce") for t in mine & theirs)


def _held_products(planning: Planning, stores: Sequence[Store]) -> set[Term]:
    """Sums of products inside of reductions without a loop. Example: x @ w.T in (x @ w.T).max(-1), for short rows."""
    terms = [s.term for s in stores]
    looped = {*loop_reductions(terms, planning.held_limit)}
    inside = {t for r in reductions(terms) if r not in looped for t in reduces(r.args[0])}
    return {t for t in inside - looped if len(sum_factors(t)) > 1}


def _only_read_in_common(planning: Planning, group: Sequence[Store], store: Store) -> bool:
    """Whether a common kernel saves reading stored scores only, and costs the store its products of matrices."""
    whole = (*group, store)
    if any(scores.op != "load" for scores in _scores_of(group) & _scores_of((store,))):
        return False
    return _is_batched(planning, whole) and not _is_batched(planning, (store,))


def _is_batched(planning: Planning, stores: tuple[Store, ...]) -> bool:
    """Whether the rows are a batch of some product: in a tile of them it is no product of matrices."""
    return kernel_shape(stores, planning).rows in batch_dims(s.term for s in stores)


def _scores_of(stores: Sequence[Store]) -> set[Term]:
    return {r.args[0].args[0] for r in every_reduction(s.term for s in stores) if is_rescaled(r)}


# Loops


def build_loops(planning: Planning) -> Planning:
    """A pass: each kernel with its loops, its columns, and all dims that a tile holds whole. Raises NotPlannable."""
    return replace(planning, kernels=tuple(_with_loops(kernel, planning.held_limit) for kernel in planning.kernels))


def _with_loops(kernel: Kernel, held_limit: int) -> Kernel:
    terms, rows, held = [store.term for store in kernel.stores], kernel.rows, kernel.held
    repeated = repeated_dims(terms, held_limit)
    if again := [d.name for d in kernel.grid if d.size != 1 and d in repeated]:
        raise NotPlannable(f"products summed over their batch would be done again for each {', '.join(again)}")
    loops = _loops(terms, rows, held, held_limit)
    contracted = sorted(_contracted(terms, {loop.dim for loop in loops}))
    kernel = replace(kernel, held=(*contracted, *held), loops=loops)
    _check_outer_dims(kernel)
    whole = loops and held and all(loop.tile for loop in loops)
    kernel = kernel if rows is None or whole else _with_columns(kernel, held_limit)
    kernel = _without_limits_by_columns(kernel, held_limit)
    _check_loop_bodies(kernel)
    return kernel


def _contracted(terms: Sequence[Term], loop_dims: Collection[Dim]) -> set[Dim]:
    """The dims of sums that are in no loop: a tile holds them whole, those directly inside of another one, too."""
    return {d for r in reductions(terms) if r.attrs[1] not in loop_dims for d in (r.attrs[1], *dims_around(r))}


def _without_limits_by_columns(kernel: Kernel, held_limit: int) -> Kernel:
    """The kernel whose loops have no limits that depend on columns: a tile has several of them."""
    limits = (limit.bound.dims for loop in kernel.loops for limit in loop.limits)
    if not any(dims & {*kernel.columns} for dims in limits):
        return kernel
    terms, whole = [store.term for store in kernel.stores], {*kernel.held, *kernel.columns}
    return replace(kernel, loops=_loops(terms, kernel.rows, whole, held_limit))


def _check_outer_dims(kernel: Kernel) -> None:
    outer = {d for loop in kernel.loops for d in loop.outer}
    elsewhere = {*kernel.grid, *kernel.tiled, *kernel.held, *(loop.dim for loop in kernel.loops)}
    if both := sorted(outer & elsewhere):
        raise NotPlannable(f"a loop runs around {', '.join(map(str, both))}, which the kernel has elsewhere, too")


def _check_loop_bodies(kernel: Kernel) -> None:
    """A loop knows no index of another one: a sum inside of a sum over another batch has no kernel yet."""
    placed = {*kernel.grid, *kernel.tiled, *kernel.held}
    for loop in kernel.loops:
        bodies = [r.args[0] for a in loop.accumulators for r in a.reductions]
        if stray := sorted({d for body in bodies for d in body.dims} - placed - {loop.dim, *loop.outer}):
            raise NotPlannable(f"a loop over {loop.dim} depends on {', '.join(map(str, stray))}, which no tile has")


def _with_columns(kernel: Kernel, held_limit: int) -> Kernel:
    """The kernel with tiles of columns beside those of rows, if it has products of both.

    Without loops, the rows are whichever of the two comes first in the order of the first store.
    """
    terms, rows = [store.term for store in kernel.stores], kernel.rows
    tiles = any(loop.tile for loop in kernel.loops)
    nodes = loop_reductions(terms, held_limit) if tiles else [n for term in terms for n in computed(term)]
    tiled = (rows, *columns_of(nodes, rows, kernel.grid, MIN_ROWS_OF_A_PRODUCT))
    if len(tiled) > 1 and not tiles:
        tiled = tuple(d for d in kernel.order if d in tiled)
    rows, *columns = tiled
    grid = tuple(d for d in kernel.grid if d not in tiled)
    return replace(kernel, grid=grid, rows=rows, row_tile=f"{rows.name}_tile", columns=tuple(columns))


def _loops(terms: Sequence[Term], rows: Dim | None, held: Collection[Dim], held_limit: int) -> tuple[Loop, ...]:
    """Reductions of one dim with the same dims around it share a loop unless one needs the other's finished value."""
    found = loop_reductions(terms, held_limit)
    level: dict[Term, int] = {}
    for r in found:  # inner ones first
        level[r] = 1 + max((level[t] for t in subterms(r.args[0]) if t in level), default=-1)
    groups: dict[tuple[int, Dim, tuple[Dim, ...]], list[Term]] = {}
    for r in sorted(found, key=lambda r: level[r]):
        groups.setdefault((level[r], r.attrs[1], dims_around(r)), []).append(r)
    contracted = {r.attrs[1] for r in reductions(terms)} - loop_dims(terms, held_limit)
    within = contracted | set(held)
    if found and all(map(sums_over_batch, found)):
        return tuple(_loop_of_pairs(group, number) for number, group in enumerate(groups.values()))
    return tuple(_loop(group, rows, within, number) for number, group in enumerate(groups.values()))


def _loop_of_pairs(group: Sequence[Term], number: int) -> Loop:
    """A loop over a batch, index by index, whose accumulators hold rows and columns."""
    made = _loop(group, None, set(), number)
    return replace(made, tile="", ranges=(Range((), (), made.guard is None),))


def _loop(group: Sequence[Term], rows: Dim | None, held: set[Dim], number: int) -> Loop:
    dim = group[0].attrs[1]
    peeled = {r: peel(r) for r in group}
    common = [c for c in next(iter(peeled.values()))[0] if all(c in parts for parts, _, _ in peeled.values())]
    guard = conjunction(common)
    return Loop(
        dim=dim,
        tile=f"{dim.name}_tile",
        accumulators=_accumulators(peeled, set(common), number),
        guard=guard,
        ranges=ranges(guard, dim, rows, held),
        outer=dims_around(group[0]),
    )


def _accumulators(peeled: Mapping[Term, Peeled], common: set[Term], number: int) -> tuple[Accumulator, ...]:
    """One for each reduction, except that softmax states with the same scores share one."""
    members: dict[Term, list[tuple[Term, Term]]] = {}  # by the scores, or by the reduction itself: (reduction, value)
    scores: dict[Term, Term | None] = {}
    for r, one in peeled.items():
        gauge, value = _guarded(r.attrs[0], one, common)
        key = gauge if gauge is not None else r
        scores[key] = gauge
        members.setdefault(key, []).append((r, value))
    return tuple(
        Accumulator(
            name=f"{found[0][0].attrs[0]}{number}_{n}",
            monoid=found[0][0].attrs[0],
            gauge=scores[key],
            values=tuple(value for _, value in found),
            reductions=tuple(r for r, _ in found),
        )
        for n, (key, found) in enumerate(members.items())
    )


def _guarded(monoid: str, peeled: Peeled, common: set[Term]) -> tuple[Term | None, Term]:
    """Scores and value, the first of them with those conjuncts that the loop does not test for all reductions."""
    parts, gauge, value = peeled
    own = conjunction(c for c in parts if c not in common)
    if own is None:
        return gauge, value
    if gauge is not None:
        return where(own, gauge, const(-float("inf"))), value
    return None, where(own, value, const(_identity(monoid)))


def _identity(monoid: str) -> float | bool:
    """The number that an absent element of the reduction counts as."""
    value = MONOIDS[monoid].identity
    assert isinstance(value, bool | int | float), f"absent elements of {monoid} are no number"
    return value


def peel(r: Term) -> Peeled:
    """(conjuncts of the guard, scores, value) of a reduction; the scores are None unless it is a softmax state.

    where(p, x, identity) is x wherever p holds and absent elsewhere, so p is a guard.
    """
    monoid, body = r.attrs[0], body_of(r)
    if monoid == "rescaled":
        if body.op != "scaled":
            raise NotPlannable("a rescaled reduction whose body is not a pair of scale and weight")
        parts, gauge = _peel_where(body.args[0], -float("inf"))
        masked = finite_mask(gauge)
        if masked and keeps_some(conjunction((*parts, masked.kept)), r.attrs[1]):
            parts, gauge = tuple(dict.fromkeys((*parts, *conjuncts(masked.kept)))), masked.seen
        return parts, gauge, body.args[1]
    if monoid == "any":
        return conjuncts(body), None, const(True)
    parts, value = _peel_where(body, _identity(monoid))
    return parts, None, value


def _peel_where(body: Term, identity: float | bool) -> tuple[tuple[Term, ...], Term]:
    parts: list[Term] = []
    while body.op == "where":
        condition, yes, no = body.args
        if _is_literal(no, identity):
            parts, body = [*parts, *conjuncts(condition)], yes
        elif _is_literal(yes, identity):
            parts, body = [*parts, *conjuncts(condition, negated=True)], no
        else:
            break
    return tuple(dict.fromkeys(parts)), body


def _is_literal(x: Term, value: float | bool) -> bool:
    while x.op == "cast":
        x = x.args[0]
    return x.op == "const" and x.attrs[0] == value


# Masks of loops


def finite_masks_as_guards(planning: Planning) -> Planning:
    """A pass: masks by a large negative number become guards, where limits known before the loop replace them."""
    for number, kernel in enumerate(planning.kernels):
        for loop in kernel.loops:
            if _has_proved_finite_mask(loop):
                planning = planning.with_note(
                    f"scores masked by a number far below count as absent: each row keeps something along {loop.dim}"
                )
            found = _as_guard(loop, kernel)
            if found is not None and not found.finite_mask:
                note = f"scores masked by a number far below count as absent where limits of {loop.dim} keep any"
                planning = _with_loop(planning.with_note(note), number, loop, found)
    return planning


def _has_proved_finite_mask(loop: Loop) -> bool:
    """Whether the loop's guard is made of a finite mask, of which each row is proved to keep something."""
    whole = {r.args[0].args[0] for a in loop.accumulators if a.gauge is not None for r in a.reductions}
    return loop.guard is not None and any(map(finite_mask, whole))


def _as_guard(loop: Loop, kernel: Kernel) -> Loop | None:
    """The loop with its scores' finite mask as a guard; None if it has none. A column is not known before the loop."""
    terms = [store.term for store in kernel.stores]
    return with_finite_mask_as_guard(loop, terms, {*kernel.grid, kernel.rows}, kernel.rows)


def _with_loop(planning: Planning, number: int, old: Loop, new: Loop) -> Planning:
    kernels = list(planning.kernels)
    loops = tuple(new if loop is old else loop for loop in kernels[number].loops)
    kernels[number] = replace(kernels[number], loops=loops)
    return replace(planning, kernels=tuple(kernels))


def attach_block_maps(planning: Planning) -> Planning:
    """A pass: a loop whose guard reads data that is there before the plan runs gets a block map."""
    made = [store.output.name for store in planning.stores]
    for number, kernel in enumerate(planning.kernels):
        for loop in kernel.loops:
            guarded = _as_guard(loop, kernel) or loop
            points = (*kernel.grid, *loop.outer)
            found = block_map(guarded.guard, loop.dim, kernel.rows, points, made, guarded.finite_mask)
            if found is not None and loop.tile and not all(r.exact for r in guarded.ranges):
                planning = planning.with_note(_map_note(found))
                planning = _with_loop(planning, number, loop, replace(guarded, map=found))
    return planning


def _map_note(found: BlockMap) -> str:
    read = ", ".join(t.name for t in tensors(found.guard))
    over = ", ".join(d.name for d in (*found.dims, *found.rows, found.loop))
    note = f"a block map over {over} classes tiles of {found.loop} where it pays; kept while {read} stays unchanged"
    return note + ("; rows that keep nothing read every tile" if found.finite_mask else "")


# Totals that are added up


def share_totals(planning: Planning) -> Planning:
    """A pass: values of a softmax state whose totals are read only as their sum are added to one total.

    Example: mantissa(⊕_j ⟨s, x · v⟩) + mantissa(⊕_j ⟨s, w⟩) takes one accumulator as wide as v, and two products.
    """
    return replace(planning, kernels=tuple(map(_with_shared_totals, planning.kernels)))


def _with_shared_totals(kernel: Kernel) -> Kernel:
    """The kernel with totals shared that are larger than a number for each row."""
    every = roots(kernel)
    uses = Counter(every)  # what a kernel evaluates as it stands is used by more than a sum
    uses.update(operand for node in {n for root in every for n in subterms(root)} for operand in node.args)
    sums = [n for n in dict.fromkeys(n for root in every for n in subterms(root)) if n.op == "add"]
    loops = tuple(
        replace(loop, accumulators=tuple(_with_shared(state, sums, uses) for state in loop.accumulators))
        for loop in kernel.loops
    )
    return replace(kernel, loops=loops)


def _with_shared(state: Accumulator, sums: Iterable[Term], uses: Mapping[Term, int]) -> Accumulator:
    if state.gauge is None:
        return state
    wide = {r: n for n, r in enumerate(state.reductions) if not state.values[n].dims <= state.gauge.dims}
    # the scale is that of the state, whichever value it is asked of
    read_once = [r for r in wide if uses[r] == 1 + (scale(r) in uses) and uses[mantissa(r)] == 1]
    alone = {mantissa(r): wide[r] for r in read_once}
    totals = [*state.totals]
    for node in sums:
        addends = _addends(node, alone, uses)
        if addends is not None:
            first = min(totals[alone[a]] for a in addends)
            totals = [first if total in {alone[a] for a in addends} else total for total in totals]
    return state if totals == [*state.totals] else replace(state, added_to=tuple(totals))


def _addends(node: Term, alone: Collection[Term], uses: Mapping[Term, int]) -> list[Term] | None:
    """The totals of which a sum consists; None if it has another addend, or a part of it is read elsewhere."""
    found: list[Term] = []
    for operand in node.args:
        parts = [operand] if operand in alone else _addends(operand, alone, uses) if operand.op == "add" else None
        if parts is None or uses[operand] != 1 or operand.dims != node.dims:
            return None
        found += parts
    return found


# Products that must not round


def mark_exact_products(planning: Planning) -> Planning:
    """A pass: marks the products whose computed factors must not be rounded to half precision."""
    results = [planning.stores[planning.index(name)] for name in planning.results]
    return replace(planning, kernels=with_exact(planning.kernels, results, planning.references))

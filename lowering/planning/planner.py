"""Term -> Plan: which dims are grid, rows, held or loops; which reductions share a loop; what is a kernel of its own.

Invariant: in one kernel, a loop's reductions depend only on output dims and on finished reductions of earlier loops.
Decided by structure alone: no reduction is known by what it is for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from ...egraph.terms.ops import MONOIDS, const, iota, load, where
from ...egraph.terms.term import Dim, Tensor, Term
from ...egraph.terms.traversal import every_reduction, substitute, subterms, tensors
from ..analysis.dim_roles import (
    batch_dims,
    beside_long,
    beside_rows,
    columns_of,
    computed,
    cube_work,
    is_long,
    loop_dims,
    loop_reductions,
    paired_dims,
    private_dims,
    repeated_dims,
    size_key,
    state_dims,
)
from ..analysis.exact_products import with_exact
from ..analysis.relative_index import Difference, of_difference
from ..masks.finite_masks import faint, fainted, keeps_some
from ..masks.loop_ranges import block_map, conjunction, conjuncts, ranges
from ..plan.records import Accumulator, Kernel, Loop, NotPlannable, Plan, Store
from ..plan.term_edits import replace_from_above, with_fresh_bound_dims
from ..plan.thresholds import FEW, HELD, TOGETHER
from .inline_producers import absorbed
from .kernel_cuts import between_batches, in_the_way, nested, of_other_rows, sharing, without
from .normalize_terms import is_rescaled, prepared
from .reshape_dims import grouped, joined
from .tabulate_lookups import of_places


def build_plan(term: Term, output: Tensor, order: tuple[Dim, ...], derivation=(), held: int = HELD) -> Plan:
    """The plan that computes `term` into `output`, whose axes run over `order` (dims the term lacks are broadcast).

    Raises NotPlannable with the reason.
    """
    return plan_stores((Store(term, output, order),), derivation, held)


def plan_stores(stores: Sequence[Store], derivation=(), held: int = HELD, asked: Sequence[Term] = ()) -> Plan:
    """The plan that computes every store; those whose loops meet share a kernel. Raises NotPlannable.

    asked: what the stores' terms are forms of, with the roundings that the program has, where that is something else.
    """
    for store in stores:
        _refuse(store.term, store.output, store.order)
    inputs = tuple(dict.fromkeys(t for store in stores for t in tensors(store.term)))
    outputs = tuple(store.output for store in stores)
    builder = _Builder(held, {t.name for t in (*inputs, *outputs)})
    asked = asked or [store.term for store in stores]
    stores, asked = grouped(prepared(stores), asked, builder.choose_rows, held)
    stores, asked = joined(stores, asked, lambda stores: builder.choose_rows(stores)[1], held)
    kernels = with_exact(builder.kernels(stores), stores, asked)
    return Plan(kernels, inputs, outputs, tuple(derivation), tuple(builder.notes))


def _refuse(term: Term, output: Tensor, order: tuple[Dim, ...]) -> None:
    if stray := sorted(term.dims - set(order)):
        raise NotPlannable(f"the result depends on {', '.join(map(str, stray))}, which the output has no axis for")
    if len(order) != len(output.shape) or len(set(order)) != len(order):
        raise NotPlannable(
            f"the output {output.name} has {len(output.shape)} axes, its dims are {', '.join(map(str, order))}"
        )
    if any(t.op == "var" for t in subterms(term)):
        raise NotPlannable("the term has free variables")
    if term.dtype.startswith("pair"):
        raise NotPlannable("the result is a pair of scale and mantissa; only its parts can be stored")


class _Builder:
    """Cuts what no single kernel can do: a cut subterm becomes a store of an earlier kernel, and a load of it."""

    def __init__(self, held: int, names: set[str]):
        self.held, self.names = held, names
        self.level: dict[Store, int] = {}
        self.parts: dict[Term, Term] = {}
        self.notes: list[str] = []

    def kernels(self, stores: Sequence[Store]) -> tuple[Kernel, ...]:
        """In launch order: stores that wait for equally many others may share one."""
        for store in self.apart(stores):
            self.add(store)
        groups: list[list[Store]] = []
        for store in sorted(self.level, key=self.level.__getitem__):
            met = (g for g in groups if self.level[g[0]] == self.level[store] and self.fit(g, store))
            group = next(met, None)
            groups.append([store]) if group is None else group.append(store)
        kernels = absorbed([self.kernel(tuple(group), "") for group in groups])
        return tuple(replace(kernel, name=f"kernel{n}") for n, kernel in enumerate(kernels))

    def apart(self, stores: Sequence[Store]) -> list[Store]:
        """The stores with loads for scores that stand between products of different batches, in whichever they are."""
        terms = [store.term for store in stores]
        for number, store in enumerate(stores):
            while change := self.of_places(terms[number], store.order):
                terms = [replace_from_above(term, change) for term in terms]
            rows, _ = self.choose_rows([replace(store, term=terms[number])])
            while part := between_batches(terms[number], rows, self.held):
                change = {part: self.stored(part, store.order, "is in products for each of two dims")}
                terms = [replace_from_above(term, change) for term in terms]
        return [replace(store, term=term) for store, term in zip(stores, terms, strict=True)]

    def of_places(self, term: Term, order: tuple[Dim, ...]) -> dict[Term, Term]:
        """A fold that a place of the loop's and another dim picks from a table's, and the load of what is stored."""
        found = (of_places(r.args[0], r.attrs[1]) for r in loop_reductions([term], self.held))
        return next((self.moved(one, order) for one in found if one), {})

    def add(self, store: Store) -> None:
        """Adds the store after those that it needs. Its level: how many others, one after another, come before it."""
        term, order = store.term, store.order
        rows_of = lambda term: self.choose_rows([replace(store, term=term)])
        while inner := nested(term, self.held, rows_of(term)[1]):
            term = self.cut(term, inner, order, "depends on a dim that is reduced around it")
            for state in sharing(term, inner, self.held):
                term = self.cut(term, state, order, "is a state of the same loop")
        while first := in_the_way(term, lambda term: rows_of(term)[0], self.held):
            term = self.cut(term, first, order, "would leave too few rows to a tile")
        while other := of_other_rows(term, rows_of(term)[0], self.held):
            term = self.cut(term, other, order, "has other rows than the rest")
        rows, _ = rows_of(term)
        while rows is not None and (loose := without(term, rows, self.held)):
            term = self.cut(term, loose, order, f"is the same for all {rows}")
        while found := self.of_difference(replace(store, term=term)):
            term = replace_from_above(term, self.moved(found, order))
        needed = {*tensors(term)}
        before = [level for other, level in self.level.items() if other.output in needed]
        self.level[replace(store, term=term)] = 1 + max(before, default=-1)

    def fit(self, group: list[Store], store: Store) -> bool:
        """The store's loops run over what the group's run over, tile by tile alike, with work in common."""
        mine, theirs = ({*loop_reductions(ts, self.held)} for ts in ([store.term], [g.term for g in group]))
        common = {t for r in mine for t in subterms(r)} & {t for r in theirs for t in subterms(r)}
        dims = {r.attrs[1] for r in mine | theirs}
        if not any(t.dims & dims and t.op in ("load", "reduce") for t in common):
            return False
        whole = (*group, store)
        rows, _, grid = self.shape(whole)
        alone = [self.shape(stores) for stores in (group, (store,))]
        gauges = _gauges(group) & _gauges((store,))
        if all(g.op == "load" for g in gauges) and _batched(rows, whole) and not _batched(alone[1][0], (store,)):
            return False  # what they share is only to be read
        needed = {*(d for d in grid if d.size != 1), *([rows] if rows else [])}
        alike = all(a[0] == rows for a in alone) or bool(gauges)
        return alike and all(needed <= {*s.order} for s in whole)

    def shape(self, stores: Sequence[Store]) -> tuple[Dim | None, tuple[Dim, ...], tuple[Dim, ...]]:
        """Rows, held output dims and grid of a kernel with these stores."""
        order = tuple(dict.fromkeys(d for store in stores for d in store.order))
        rows, held = self.choose_rows(stores)
        return rows, held, tuple(d for d in order if d != rows and d not in held)

    def kernel(self, stores: tuple[Store, ...], name: str) -> Kernel:
        terms = [store.term for store in stores]
        rows, held, grid = self.shape(stores)
        repeated = repeated_dims(terms, self.held)
        if again := [d.name for d in grid if d.size != 1 and d in repeated]:
            raise NotPlannable(f"products summed over their batch would be done again for each {', '.join(again)}")
        loops = tuple(self.mapped(loop, rows, grid, terms) for loop in _loops(terms, rows, held, self.held))
        nodes = loop_reductions(terms, self.held) if loops else [n for term in terms for n in computed(term)]
        columns = columns_of(nodes, rows, grid, FEW) if rows and not (loops and held) else ()
        if columns and not loops:
            rows, *columns = (d for d in stores[0].order if d in (rows, *columns))
        contracted = sorted({r.attrs[1] for r in every_reduction(terms)} - {loop.dim for loop in loops})
        inputs = tuple(dict.fromkeys(t for term in terms for t in tensors(term)))
        row_tile = f"{rows.name}_tile" if rows else ""
        grid = tuple(d for d in grid if d not in (rows, *columns))
        return Kernel(name, grid, rows, row_tile, (*contracted, *held), loops, stores, inputs, columns=tuple(columns))

    def mapped(self, loop: Loop, rows: Dim | None, grid: tuple[Dim, ...], terms: list[Term]) -> Loop:
        """The loop with a block map, if its guard reads data that is there before the plan runs."""
        given, loop = loop, fainted(loop, terms, {*grid, rows}, rows) or loop
        whole = {r.args[0].args[0] for a in given.accumulators if a.gauge is not None for r in a.reductions}
        if given.guard is not None and any(map(faint, whole)):
            self.say(f"scores masked by a number far below count as absent: each row keeps something along {loop.dim}")
        if loop is not given and not loop.faint:
            self.say(f"scores masked by a number far below count as absent where limits of {loop.dim} keep any")
            return loop
        found = block_map(loop.guard, loop.dim, rows, grid, [s.output.name for s in self.level], loop.faint)
        if found is None or all(r.exact for r in loop.ranges):
            return given
        read = ", ".join(t.name for t in tensors(found.guard))
        over = ", ".join(d.name for d in (*found.dims, *found.rows, loop.dim))
        self.say(
            f"a block map over {over} classes tiles of {loop.dim} where it pays; kept while {read} stays unchanged"
            + ("; rows that keep nothing read every tile" if loop.faint else "")
        )
        return replace(loop, map=found)

    def say(self, note: str) -> None:
        self.notes += [] if note in self.notes else [note]

    def of_difference(self, store: Store) -> Difference | None:
        """What of the store's loops is a function of loop minus rows, and costly enough to be stored."""
        rows, _, grid = self.shape((store,))
        for r in loop_reductions([store.term], self.held):
            _, *bodies = _peel(r)
            found = of_difference(filter(None, bodies), rows, r.attrs[1], grid)
            if found is not None:
                return found
        return None

    def moved(self, found: Difference, order: tuple[Dim, ...]) -> dict[Term, Term]:
        """The part, and the load that it is replaced by, of values that are stored for each place once."""
        where = ", ".join(f"{dim} = {index}" for dim, index in found.places)
        values = self.stored(found.values, order, f"is a function of {where} alone")
        return {found.part: substitute(values, {iota(dim): index for dim, index in found.places})}

    def cut(self, term: Term, part: Term, order: tuple[Dim, ...], why: str) -> Term:
        """Stores `part` by an earlier kernel and loads it instead."""
        return replace_from_above(term, {part: self.stored(part, order, why)})

    def stored(self, part: Term, order: tuple[Dim, ...], why: str) -> Term:
        """The load of what an earlier kernel stores."""
        if part not in self.parts:
            dims = (*(d for d in order if d in part.dims), *sorted(part.dims - set(order)))
            name = self.fresh_name()
            dtype = "float32" if part.dtype == "float" else part.dtype
            target = Tensor(name, dtype, tuple(d.size for d in dims))
            self.notes.append(f"{name}[{', '.join(d.name for d in dims)}] is stored between kernels: it {why}")
            self.add(Store(*with_fresh_bound_dims([part], dims), target, dims))
            self.parts[part] = load(target, *(iota(d) for d in dims))
        return self.parts[part]

    def fresh_name(self) -> str:
        name = next(n for k in range(len(self.names) + 1) if (n := f"part{k}") not in self.names)
        self.names.add(name)
        return name

    def choose_rows(self, stores: Sequence[Store]) -> tuple[Dim | None, tuple[Dim, ...]]:
        """The dim that is tiled and the output dims that are held whole; the others are the grid.

        All loops depend on the rows, so that none is repeated per tile of rows; or, where a dim that is not held is one
        that no loop depends on, none does: then they are cut off as kernels of their own. Rows are no batch of a
        product: rather a dim that some loops lack, which then are cut off. Of the least work if all are of some.
        """
        terms, order = [s.term for s in stores], tuple(dict.fromkeys(d for s in stores for d in s.order))
        found = loop_reductions(terms, self.held)
        loops = [r for r in found if tensors(r)] or found  # a count beside others costs no tile anything
        private, batch, state = private_dims(terms), batch_dims(terms), state_dims(terms)
        free = [d for d in order if loops and not any(d in r.dims for r in loops)]
        free = [d for d in free if is_long(d, self.held if d in private else FEW - 1)]
        carried = free or [d for d in order if all(d in r.dims for r in loops)]
        beside = beside_rows(loops, FEW)
        most = 2 * self.held if loops else self.held
        short = [d for d in order if d in private and d not in free and not is_long(d, most) and d.size != 1]
        if not loops:  # without states, a product of two is enough
            others = paired_dims(terms) | beside_long(terms, most)
            short = [d for d in short if d not in others][-1:]
        held = _fitting(short, [store.order for store in stores], self.held)
        repeated = repeated_dims(terms, self.held)
        again = [d for d in order if d in repeated and not is_long(d, self.held) and d.size != 1]
        if prod(d.size for d in {*again, *held}) <= TOGETHER:
            held = [d for d in order if d in again or d in held]
        choices = (
            [d for d in carried if d not in batch and d not in held and d.size != 1],
            [d for d in carried if d not in batch],
            [d for d in order if d not in {*batch, *held} and d.size != 1 and any(d in r.dims for r in loops)],
            [d for d in carried if d not in held],
        )
        known = lambda d: (d in state, d not in beside, size_key(d), order.index(d))
        rows = max(next(filter(None, choices), []), key=known, default=None)
        if rows in batch:
            apart = {*carried, *(r.attrs[1] for r in loops)}
            rows = min(choices[-1] or carried, key=lambda d: cube_work(terms, d, apart, FEW))
        return rows, tuple(d for d in held if d != rows)


def _fitting(dims: list[Dim], orders: list[tuple[Dim, ...]], limit: int) -> list[Dim]:
    """The last of the dims such that in no store the sizes of its own multiply to more than the limit.

    One alone may have twice as many elements: in halves, on the grid, whatever else the kernel does would be twice.
    """
    fitting: list[Dim] = []
    for dim in reversed(dims):
        together = max(prod(d.size for d in (dim, *fitting) if d in order) for order in orders if dim in order)
        if together <= limit or together == dim.size:
            fitting.insert(0, dim)
    return fitting


def _batched(rows: Dim | None, stores: Sequence[Store]) -> bool:
    """Whether the rows are a batch of some product: in a tile of them it is none of matrices."""
    return rows in batch_dims(s.term for s in stores)


def _gauges(stores: Sequence[Store]) -> set[Term]:
    return {r.args[0].args[0] for r in every_reduction(s.term for s in stores) if is_rescaled(r)}


def _loops(terms: list[Term], rows: Dim | None, held_dims: tuple[Dim, ...], held: int) -> tuple[Loop, ...]:
    """Reductions of one dim share a loop unless one needs the other's finished value."""
    found = loop_reductions(terms, held)
    level: dict[Term, int] = {}
    for r in found:  # inner ones first
        level[r] = 1 + max((level[t] for t in subterms(r.args[0]) if t in level), default=-1)
    groups: dict[tuple[int, Dim], list[Term]] = {}
    for r in sorted(found, key=lambda r: level[r]):
        groups.setdefault((level[r], r.attrs[1]), []).append(r)
    contracted = {r.attrs[1] for r in every_reduction(terms)} - loop_dims(terms, held)
    return tuple(
        _loop(dim, group, rows, contracted | set(held_dims), n) for n, ((_, dim), group) in enumerate(groups.items())
    )


def _loop(dim: Dim, group: list[Term], rows: Dim | None, held_dims: set[Dim], number: int) -> Loop:
    peeled = {r: _peel(r) for r in group}
    common = [c for c in next(iter(peeled.values()))[0] if all(c in parts for parts, _, _ in peeled.values())]
    guard = conjunction(common)
    return Loop(
        dim=dim,
        tile=f"{dim.name}_tile",
        accumulators=_accumulators(peeled, set(common), number),
        guard=guard,
        ranges=ranges(guard, dim, rows, held_dims),
    )


def _accumulators(peeled: dict, common: set[Term], number: int) -> tuple[Accumulator, ...]:
    """One per reduction, except that rescaled sums of one gauge share theirs."""
    shared: dict[object, list[tuple[Term, Term]]] = {}
    gauges: dict[object, Term | None] = {}
    for r, (parts, gauge, value) in peeled.items():
        left = conjunction(c for c in parts if c not in common)
        guarded = gauge if gauge is not None else value
        if left is not None:
            guarded = where(left, guarded, const(-float("inf") if gauge is not None else MONOIDS[r.attrs[0]].identity))
        gauge, value = (guarded, value) if gauge is not None else (None, guarded)
        key = gauge if gauge is not None else r
        gauges[key] = gauge
        shared.setdefault(key, []).append((r, value))
    return tuple(
        Accumulator(
            name=f"{members[0][0].attrs[0]}{number}_{n}",
            monoid=members[0][0].attrs[0],
            gauge=gauges[key],
            values=tuple(value for _, value in members),
            reductions=tuple(r for r, _ in members),
        )
        for n, (key, members) in enumerate(shared.items())
    )


def _peel(r: Term) -> tuple[tuple[Term, ...], Term | None, Term]:
    """(conjuncts of the guard, gauge, value): where(p, x, identity) is x wherever p holds and absent elsewhere."""
    monoid, body = r.attrs[0], r.args[0]
    if monoid == "rescaled":
        if body.op != "scaled":
            raise NotPlannable("a rescaled reduction whose body is not a pair of scale and weight")
        parts, gauge = _peel_where(body.args[0], -float("inf"))
        masked = faint(gauge)
        if masked and keeps_some(conjunction((*parts, masked.kept)), r.attrs[1]):
            parts, gauge = tuple(dict.fromkeys((*parts, *conjuncts(masked.kept)))), masked.seen
        return parts, gauge, body.args[1]
    if monoid == "any":
        return conjuncts(body), None, const(True)
    parts, value = _peel_where(body, MONOIDS[monoid].identity)
    return parts, None, value


def _peel_where(body: Term, identity) -> tuple[tuple[Term, ...], Term]:
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


def _is_literal(x: Term, value) -> bool:
    while x.op == "cast":
        x = x.args[0]
    return x.op == "const" and x.attrs[0] == value

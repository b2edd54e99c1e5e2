"""A kernel's loops shared out over programs: each finds the states of its part, and a second kernel merges them.

Every state is a value of a commutative monoid, so that ⊕_j x = ⊕_p ⊕_{j of part p} x, whichever elements a part has
(the theorems named below). The merge is the kernel's own result terms over reductions of the same monoids, along the
part, of what the parts stored. Decided by sizes alone, when a launch is prepared: lowering/triton/launch.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from math import inf, prod

from ...egraph.terms.ops import cast, const, eq, iota, load, mantissa, reduce, rescaled_sum, scale, where
from ...egraph.terms.term import PAIR, Dim, Tensor, Term
from ...egraph.terms.traversal import all_dims, substitute, subterms, tensors
from ..plan.dtypes import HALVES
from ..plan.records import Accumulator, Kernel, Loop, Plan, Store

THEOREMS = {  # in proofs/theory: what makes the sharing out a law, for a monoid and for one with a scale
    "plain": ("Monoid.partition", "Monoid.tile"),
    "rescaled": ("Cascade.combine_assoc", "Cascade.combine_comm", "Softmax.merge_any_tree"),
}
RESIDENT = 2  # programs for each multiprocessor: while one waits for memory, the other computes
LEAST = 2  # tiles of a part: what a program costs beside them should not be felt
MANY, ROWS = 256, 64  # multiprocessors of no device, and rows of a tile, for what is said before sizes are known
PLURAL = {"rescaled": "rescaled sums", "sum": "sums", "prod": "products", "max": "maxima", "min": "minima"}
LONG = 24  # tiles of a loop that is worth one more kernel


@dataclass(frozen=True)
class Shared:
    """What runs instead of a kernel: `first`, over parts whose number is the symbolic size of `part`, then `last`."""

    first: Kernel
    last: Kernel
    part: Dim

    def __str__(self) -> str:
        over = ", ".join(str(loop.dim) for loop in self.first.loops)
        monoids = dict.fromkeys(a.monoid for loop in self.last.loops for a in loop.accumulators)
        kinds = " and ".join(PLURAL.get(monoid, monoid) for monoid in monoids)
        return f"{over} shared out over programs, whose states, {kinds}, {self.last.name} merges"


def number(programs: int, tiles: int, places: int, enough: float = 1.0) -> int:
    """How many parts fill a device of so many multiprocessors, each of LEAST tiles or more; 1 where none are needed.

    enough: the part of all multiprocessors that programs may leave the others idle for.
    """
    if programs > enough * places or tiles < LONG:
        return 1
    return max(1, min(RESIDENT * places // max(programs, 1), tiles // LEAST))


def said(kernel: Kernel) -> str:
    """How the kernel is shared out, for the report; empty where it has programs for a large device at any size."""
    rows = kernel.rows.size if kernel.rows is not None else None
    sizes = [d.size for d in kernel.grid] + ([-(-rows // ROWS)] if isinstance(rows, int) else [])
    long = any(not isinstance(n := loop.dim.size, int) or n >= LONG * ROWS for loop in kernel.loops)
    if not long or prod(n for n in sizes if isinstance(n, int)) > MANY or (found := shared(kernel)) is None:
        return ""
    return f"where programs are fewer than multiprocessors: {found}"


@lru_cache(maxsize=512)
def shared(kernel: Kernel) -> Shared | None:
    """The two kernels; None where a loop needs what another one has finished, or there is none."""
    every = {r for loop in kernel.loops for a in loop.accumulators for r in a.reductions}
    needed = {t for loop in kernel.loops for body in _bodies(loop) for t in subterms(body)}
    if not every or every & needed or any(map(kernel.written_by, kernel.loops)):
        return None
    names = {str(d) for d in _dims(kernel)}
    part = Dim(next(n for k in range(len(names) + 1) if (n := f"part{k or ''}") not in names), f"{kernel.name}_parts")
    kept, known = _kept(kernel, part)
    loops = tuple(replace(loop, map=None, part=part) for loop in kernel.loops)
    first = replace(kernel, name=f"{kernel.name}_parts", grid=(*kernel.grid, part), loops=loops, stores=kept)
    return Shared(first, _merge(kernel, part, known), part)


def _bodies(loop: Loop) -> list[Term]:
    found = [b for a in loop.accumulators for b in (a.gauge, *a.values) if b is not None]
    return [*found, *([] if loop.guard is None else [loop.guard]), *(limit.bound for limit in loop.limits)]


def _dims(kernel: Kernel) -> list[Dim]:
    terms = [*(s.term for s in kernel.stores), *(b for loop in kernel.loops for b in _bodies(loop))]
    return [*kernel.grid, *kernel.tiled, *(d for t in terms for d in all_dims(t))]


def _kept(kernel: Kernel, part: Dim) -> tuple[tuple[Store, ...], dict[Term, Term]]:
    """What the parts store, and what becomes of each finished value: the same monoid's reduction along the part.

    A mantissa of nothing has no number; it is stored as 0 beside its scale of -inf, which says that it is absent. The
    part is the first axis: no stride depends on how many there are.
    """
    stores: dict[Term, Store] = {}
    known: dict[Term, Term] = {}
    places = (part, *kernel.grid, *kernel.tiled)
    double = any(t.dtype == "float64" for store in kernel.stores for t in subterms(store.term))
    count = "float64" if double else "float32"  # a literal's sum takes the type of what it meets

    def stored(value: Term, dims: frozenset[Dim]) -> Term:
        if value not in stores:
            order = (*places, *(d for d in kernel.held if d in dims))
            kind = "float32" if value.dtype in HALVES else count if value.dtype == "float" else value.dtype
            name = f"{kernel.name}_state{len(stores)}"
            stores[value] = Store(value, Tensor(name, kind, tuple(d.size for d in order)), order)
        found = stores[value]
        return load(found.output, *map(iota, found.order))

    for accumulator in (a for loop in kernel.loops for a in loop.accumulators):
        kind = accumulator.reductions[0].dtype.removeprefix(PAIR)
        if accumulator.gauge is None:
            known |= {r: _as(kind, reduce(accumulator.monoid, part, stored(r, r.dims))) for r in accumulator.reductions}
            continue
        top = scale(accumulator.reductions[0])
        for r in accumulator.reductions:
            present = where(eq(top, const(-inf)), const(0.0), mantissa(r))
            state = rescaled_sum(part, stored(top, accumulator.gauge.dims), stored(present, r.dims))
            known |= {scale(r): _as(kind, scale(state)), mantissa(r): _as(kind, mantissa(state))}
    return tuple(stores.values()), known


def _as(kind: str, value: Term) -> Term:
    return cast(value, kind) if kind in HALVES else value


def _merge(kernel: Kernel, part: Dim, known: dict[Term, Term]) -> Kernel:
    """The kernel's results from the parts' states, for one row at a time: there are few."""
    stores = tuple(replace(store, term=substitute(store.term, known)) for store in kernel.stores)
    nodes = dict.fromkeys(t for store in stores for t in subterms(store.term))
    merged = [t for t in nodes if t.op == "reduce" and t.attrs[1] == part]
    by_gauge: dict[Term, list[Term]] = {}
    for r in merged:
        by_gauge.setdefault(r.args[0].args[0] if r.attrs[0] == "rescaled" else r, []).append(r)
    states = tuple(
        Accumulator(
            name=f"merged{n}",
            monoid=found[0].attrs[0],
            gauge=key if found[0].attrs[0] == "rescaled" else None,
            values=tuple(r.args[0].args[1] if r.attrs[0] == "rescaled" else r.args[0] for r in found),
            reductions=tuple(found),
        )
        for n, (key, found) in enumerate(by_gauge.items())
    )
    used = {d for store in stores for d in (*all_dims(store.term), *store.order)}
    return Kernel(
        name=f"{kernel.name}_merged",
        grid=(*kernel.grid, *kernel.tiled),
        rows=None,
        row_tile="",
        held=tuple(d for d in kernel.held if d in used),
        loops=(Loop(part, f"{part}_tile", states),),
        stores=stores,
        inputs=tuple(dict.fromkeys(t for store in stores for t in tensors(store.term))),
        exact=frozenset(substitute(r, known) for r in kernel.exact),
    )


def divided(plan: Plan) -> Plan:
    """The plan with every kernel that can be in parts: a launch gives their numbers as sizes."""
    found = [(kernel, shared(kernel)) for kernel in plan.kernels]
    return replace(plan, kernels=tuple(k for own, s in found for k in ((own,) if s is None else (s.first, s.last))))


def numbers(plan: Plan, count: int) -> Mapping[str, int]:
    """Sizes of a divided plan that give every kernel as many parts."""
    return {str(s.part.size): count for kernel in plan.kernels if (s := shared(kernel)) is not None}

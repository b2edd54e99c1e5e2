"""What must hold after each stage of planning; a wrong state is an error that names the stage and the store.

Example: a store whose term depends on a dim that its output has no axis for would read an index that no kernel sets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import combinations

from ...egraph.terms.term import Dim, Term
from ...egraph.terms.traversal import every_reduction, reduces, subterms, tensors
from ..plan.records import Kernel, Store
from .planning_state import Planning


class WrongPlanning(AssertionError):
    """A state of planning that a stage must not leave behind; the message names the stage and the store."""


def verify(planning: Planning, stage: str) -> None:
    """Raises WrongPlanning for what must not be after this stage."""
    for check in CHECKS[stage]:
        for complaint in check(planning):
            raise WrongPlanning(f"after the stage {stage!r} of planning, {complaint}")


def stores_cover_their_dims(planning: Planning) -> Iterator[str]:
    """Each dim of a store's term is an axis of its output, and each axis is a dim of its own."""
    for store in planning.stores:
        if stray := sorted(store.term.dims - {*store.order}):
            yield f"{_name(store)} depends on {_listed(stray)}, which its output has no axis for"
        if len({*store.order}) != len(store.order) or len(store.places or store.order) != len(store.output.shape):
            yield f"{_name(store)} has {len(store.output.shape)} axes for the dims {_listed(store.order)}"


def no_variable_is_free(planning: Planning) -> Iterator[str]:
    """No term has a variable, as patterns of rules have, or says what is stored, as plan terms do: kernels load it."""
    for store in planning.stores:
        if variables := sorted({str(t.attrs[0]) for t in subterms(store.term) if t.op == "var"}):
            yield f"{_name(store)} has the free variables {', '.join(variables)}"
        if marked := sorted({str(t.attrs[0]) for t in subterms(store.term) if t.op == "stored"}):
            yield f"{_name(store)} says that {', '.join(marked)} is stored, and does not load it"


def no_dim_is_bound_twice(planning: Planning) -> Iterator[str]:
    """No reduction binds an axis of its store, or a dim that a reduction around it binds for a use of that dim."""
    for store in planning.stores:
        for r in every_reduction([store.term]):
            if r.attrs[1] in store.order:
                yield f"{_name(store)} has the axis {r.attrs[1]}, which a reduction of its term binds as well"
            if any(_hides(inner, r.attrs[1]) for inner in reduces(r.args[0])):
                yield f"{_name(store)} has two reductions over {r.attrs[1]}, one inside of the other"


def _hides(r: Term, dim: Dim) -> bool:
    return dim in r.dims and any(inner.attrs[1] == dim for inner in reduces(r.args[0]))


def shapes_cover_the_orders(planning: Planning) -> Iterator[str]:
    """Each store has a shape, in which each of its dims has one role."""
    for store in planning.stores:
        shape = planning.shapes.get(store.output.name)
        if shape is None:
            yield f"{_name(store)} has no shape"
        elif sorted((*filter(None, [shape.rows]), *shape.held, *shape.grid)) != sorted(store.order):
            yield f"the shape of {_name(store)} does not give each of {_listed(store.order)} one role"


def stores_follow_what_they_read(planning: Planning) -> Iterator[str]:
    """A store reads what is stored before it."""
    outputs = [store.output.name for store in planning.stores]
    for number, store in enumerate(planning.stores):
        if early := sorted({t.name for t in tensors(store.term)} & {*outputs[number:]} - {*planning.results}):
            yield f"{_name(store)} reads {', '.join(early)}, which is stored later"


def each_store_has_one_kernel(planning: Planning) -> Iterator[str]:
    """Each store is in one kernel, after the kernels of what it reads."""
    stored = [store.output.name for kernel in planning.kernels for store in kernel.stores]
    for store in planning.stores:
        if stored.count(store.output.name) != 1:
            yield f"{_name(store)} is in {stored.count(store.output.name)} kernels"
    parts, done = {*stored} - {*planning.results}, set()
    for kernel in planning.kernels:
        done |= {store.output.name for store in kernel.stores}
        if early := sorted(({t.name for t in kernel.inputs} & parts) - done):
            yield f"{kernel.name} reads {', '.join(early)}, which a later kernel stores"


def kernels_cover_their_dims(planning: Planning) -> Iterator[str]:
    """In each kernel, each dim has one role, and each dim of a store has a role."""
    for kernel in planning.kernels:
        roles = _roles(kernel)
        for (one, dims), (other, others) in combinations(roles.items(), 2):
            if both := sorted(dims & others):
                yield f"{kernel.name} has {_listed(both)} both as {one} and as {other}"
        known = set().union(*roles.values())
        for store in kernel.stores:
            if stray := sorted({*store.order} - known):
                yield f"{kernel.name} gives {_listed(stray)} of {_name(store)} no role"


def _roles(kernel: Kernel) -> dict[str, set[Dim]]:
    return {
        "grid": {*kernel.grid},
        "rows or columns": {*kernel.tiled},
        "held": {*kernel.held},
        "loop": {loop.dim for loop in kernel.loops},
        "dim around a loop": {d for loop in kernel.loops for d in loop.outer},
    }


def _name(store: Store) -> str:
    return f"the store of {store.output.name}"


def _listed(dims) -> str:
    return ", ".join(map(str, dims))


Check = Callable[[Planning], Iterator[str]]
TERMS: tuple[Check, ...] = (stores_cover_their_dims, no_variable_is_free, no_dim_is_bound_twice)
CHECKS: dict[str, tuple[Check, ...]] = {
    "terms": TERMS,
    "shape": (*TERMS, shapes_cover_the_orders),
    "cuts": (*TERMS, shapes_cover_the_orders, stores_follow_what_they_read),
    "kernels": (each_store_has_one_kernel, kernels_cover_their_dims),
}

"""A plan read back as terms: what each tensor that it stores is, over its inputs and what is stored between kernels.

Each accumulator is replaced by its own meaning: its monoid over its loop, with the elements that the guard drops
absent. A load of what an earlier kernel stores is replaced by `stored` of what that is, at the load's indices. Nothing
is taken from how the plan was made. Invariant: what the reader does not know is refused. Example: an accumulator of the
gauge s and the value v over j where p is ⊕_j ⟨where(p, s, -∞), v⟩.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from ...egraph.terms.ops import MONOIDS, cast, const, eq, iota, load, make, scaled, stored, sum_over, where
from ...egraph.terms.sizes import term_of
from ...egraph.terms.term import Dim, Tensor, Term
from ..plan.records import Accumulator, Kernel, Loop, Plan, Store
from .canonical_terms import Canonical, at_indices, named

PART = "part of "  # begins the names of tensors that no plan has
ABSORBED = -(2.0**120)  # the score of an element that a finite mask drops: any number that absorbs what is added


class NotReadBack(Exception):
    """A plan that does not mean what was asked for, or that the reader does not know; the message says why."""


@dataclass(frozen=True)
class Meaning:
    """What a stored tensor is: a canonical term over the inputs, and the dims of its axes.

    In the term, what kernels read that other kernels stored is marked as `stored`.
    """

    term: Term
    axes: tuple[Dim, ...]
    output: Tensor

    def at(self, indices: Iterable[Term]) -> Term:
        """The element at these indices."""
        return at_indices(self.term, dict(zip(self.axes, indices, strict=True)))

    def read_at(self, indices: Iterable[Term]) -> Term:
        """The element at these indices, as another kernel reads it: a narrower dtype of the tensor is a cast."""
        element = self.at(indices)
        adapts = element.dtype in (self.output.dtype, "float", "any")
        return stored(element if adapts else cast(element, self.output.dtype), self.output.name)


@dataclass(frozen=True)
class ReadPlan:
    """What a plan stores, by name, and pairs of terms that have to be equal. erase_stored.py erases what is between."""

    stored: Mapping[str, Meaning]
    equal: tuple[tuple[Term, Term], ...]


def read_back(plan: Plan) -> ReadPlan:
    """What everything is that the plan stores. Raises NotReadBack."""
    stored: dict[str, Meaning] = {}
    equal: list[tuple[Term, Term]] = []
    inputs = {t.name: t for t in plan.inputs}
    for kernel in plan.kernels:
        _demand_scopes(kernel)
        reader = _KernelReader(kernel, dict(stored), inputs)
        for store in kernel.stores:
            if store.output.name in stored or store.output.name in inputs:
                raise NotReadBack(f"{store.output.name} is stored where it is known already")
            for found in reader.store(store):
                if isinstance(found, Meaning):
                    stored[store.output.name] = found
                else:
                    equal.append(found)
    return ReadPlan(stored, tuple(equal))


class _KernelReader(Canonical):
    """Reads the terms of one kernel: canonical, with finished reductions and loads of stored tensors replaced.

    unless_zero: conditions and terms that have to be 0 where their condition is false.
    """

    def __init__(self, kernel: Kernel, stored: Mapping[str, Meaning], inputs: Mapping[str, Tensor]):
        super().__init__()
        self.kernel, self.stored, self.inputs = kernel, stored, inputs
        self.read = {*kernel.inputs}
        for loop in kernel.loops:
            finished = dict(found for a in loop.accumulators for found in self._accumulator(loop, a))
            if not self.done.keys().isdisjoint(finished):
                raise NotReadBack(f"{kernel.name} reads what a loop over {loop.dim} has not finished")
            self.done.update(finished)

    def replaced(self, node: Term) -> Term | None:
        """What stands for a load of a stored tensor. A reduction must be one that a tile can do whole."""
        if node.op == "reduce" and node.attrs[1] not in self.kernel.held:
            raise NotReadBack(f"no loop of {self.kernel.name} reduces over {node.attrs[1]} in time")
        if node.op != "load":
            return None
        tensor = node.attrs[0]
        if tensor.name.startswith(PART):
            return None
        if tensor not in self.read:
            raise NotReadBack(f"{self.kernel.name} reads {tensor.name}, which is not among its inputs")
        found = self.stored.get(tensor.name)
        if found is not None and found.output == tensor:
            return found.read_at(node.args)
        if found is not None or self.inputs.get(tensor.name) != tensor:
            raise NotReadBack(f"{self.kernel.name} reads {tensor.name} where it is not stored like that")
        return None

    # What loops compute

    def _accumulator(self, loop: Loop, accumulator: Accumulator) -> Iterator[tuple[Term, Term]]:
        """Each reduction with what the loop computes for it."""
        monoid = accumulator.monoid
        if len(accumulator.reductions) != len(accumulator.values):
            raise NotReadBack(f"{accumulator.name} has {len(accumulator.values)} values")
        if (monoid == "rescaled") != (accumulator.gauge is not None):
            raise NotReadBack(f"{accumulator.name} is of the monoid {monoid}, which its gauge does not fit")
        bodies = _states(loop, accumulator) if monoid == "rescaled" else _values(loop, accumulator)
        for reduction, total in zip(accumulator.reductions, bodies, strict=True):
            for dim in (*reversed(loop.outer), loop.dim):
                total = make("reduce", (total,), (monoid, dim))
            if total.dims - reduction.dims - {loop.part} or total.dtype != reduction.dtype:
                raise NotReadBack(f"{accumulator.name} has other dims or another dtype than its reduction")
            yield reduction, self._summed(total, len(loop.outer) + 1)

    def _summed(self, total: Term, count: int) -> Term:
        """A total whose outer reductions are a loop's, with all below them read."""
        if not count:
            return self(total)
        return named(make("reduce", (self._summed(total.args[0], count - 1),), total.attrs))

    # What is stored

    def store(self, store: Store) -> Iterator[Meaning | tuple[Term, Term]]:
        """What a store writes; before it, what has to be equal."""
        _demand_dtype(store)
        loops = [loop for loop in self.kernel.loops if loop.dim in store.order]
        summed = self._summed_by(store)
        term = self(store.term)
        if stray := term.dims - {*store.order, *summed}:
            raise NotReadBack(f"{store.output.name} depends on {', '.join(map(str, sorted(stray)))}")
        for guard in (self(loop.guard) for loop in loops if loop.guard is not None):
            inside = where(guard, term, const(0.0))
            if store.adds:
                term = inside
            elif inside is not term:
                yield term, inside
        for dim in summed:
            term = named(sum_over(dim, term))
        yield placed(store, term) if store.places else Meaning(term, store.order, store.output)

    def _summed_by(self, store: Store) -> list[Dim]:
        """The dims over which a store adds. Raises NotReadBack where it adds over none: nothing zeroes its memory."""
        if not store.adds:
            return []
        found = [d for d in (*self.kernel.tiled, *self.kernel.grid) if d not in store.order]
        if not found:
            raise NotReadBack(f"{store.output.name} adds, and there is no dim over which it sums")
        return found


def placed(store: Store, term: Term) -> Meaning:
    """An element is the sum of what is written at its place."""
    if store.adds or len(store.places) != len(store.output.shape):
        raise NotReadBack(f"{store.output.name} is written at places that the reader does not know")
    axes = tuple(Dim(f"axis {k} of {store.output.name}", size) for k, size in enumerate(store.output.shape))
    plain: dict[Dim, Term] = {}
    for axis, index in zip(axes, store.places, strict=True):
        if index.op == "iota" and index.attrs[0].size == axis.size and index.attrs[0] not in plain:
            plain[index.attrs[0]] = iota(axis)
        else:
            term = where(eq(index, iota(axis)), term, const(0.0))
    for dim in (d for d in store.order if d not in plain):
        term = named(sum_over(dim, term))
    return Meaning(at_indices(term, plain), axes, store.output)


def _states(loop: Loop, accumulator: Accumulator) -> list[Term]:
    """The softmax states of single elements."""
    gauge = accumulator.gauge if loop.guard is None else where(loop.guard, accumulator.gauge, _dropped(loop))
    return [_of_part(loop, "rescaled", scaled(gauge, value)) for value in _totals(accumulator)]


def _values(loop: Loop, accumulator: Accumulator) -> list[Term]:
    """The values of single elements."""
    if (loop.finite_mask and loop.guard is not None) or accumulator.added_to:
        raise NotReadBack(f"{accumulator.name} is no softmax state, and has what only these have")
    identity = const(MONOIDS[accumulator.monoid].identity)
    values = [value if loop.guard is None else where(loop.guard, value, identity) for value in accumulator.values]
    return [_of_part(loop, accumulator.monoid, value) for value in values]


def _dropped(loop: Loop) -> Term:
    """The score of an element that the guard drops."""
    return const(ABSORBED if loop.finite_mask else MONOIDS["rescaled"].identity[0])


def _totals(accumulator: Accumulator) -> list[Term]:
    """What is summed for each value. Of values whose totals are one, the first has the sum and the others 0."""
    totals, values = accumulator.totals, accumulator.values
    if len(totals) != len(values) or any(totals[total] != total for total in totals):
        raise NotReadBack(f"{accumulator.name} adds to totals that it lacks")
    found = [const(0.0)] * len(values)
    for value, total in zip(values, totals, strict=True):
        found[total] = value if found[total] is const(0.0) else make("add", (found[total], value))
    return found


def part_of(loop: Loop) -> Tensor:
    """The part of each index of a loop, as a tensor: in which parts a loop is cut must not matter."""
    return Tensor(f"{PART}{loop.dim.name}", "int64", (loop.dim.size,))


def part_index(loop: Loop) -> Term:
    """The part of the index that a loop is at, for the law `reduction_in_parts`."""
    return load(part_of(loop), iota(loop.dim))


def _of_part(loop: Loop, monoid: str, value: Term) -> Term:
    """An element where it is in the part of the loop that a program goes through, as the law has it."""
    if loop.part is None:
        return value
    return make("only", (eq(part_index(loop) % term_of(loop.part.size), iota(loop.part)), value), (monoid,))


def _demand_dtype(store: Store) -> None:
    kind, stored = store.term.dtype, store.output.dtype
    exact = kind in (stored, "float", "any") or (kind != "bool" and "float" in kind and "float" in stored)
    if not exact:
        raise NotReadBack(f"{store.output.name} of {stored} is stored from {kind}")


def _demand_scopes(kernel: Kernel) -> None:
    """Each dim has one role, and what a store writes is for all programs."""
    own = [*kernel.grid, *kernel.tiled, *kernel.held]
    around = {d for loop in kernel.loops for d in (*loop.outer, loop.dim)}
    if len({*own}) != len(own) or around & {*own}:
        raise NotReadBack(f"{kernel.name} has a dim in two roles")
    for store in kernel.stores:
        if stray := {*store.order} - {*own} - around:
            raise NotReadBack(f"{kernel.name} has no place for {', '.join(map(str, sorted(stray)))}")
        if len({*store.order}) != len(store.order) or len(store.places or store.order) != len(store.output.shape):
            raise NotReadBack(f"{store.output.name} has other axes than its store")
        if not store.places and tuple(d.size for d in store.order) != store.output.shape:
            raise NotReadBack(f"{store.output.name} is of another shape than what is stored")

"""The state that the passes of planning work on: a frozen record from which each pass makes the next one.

Invariant: a store comes after the stores that it reads. Example: `planning.with_terms(change)` is the state in which
each store's term is replaced by `change(term)`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ...egraph.terms.ops import iota, load
from ...egraph.terms.term import Dim, Tensor, Term
from ...egraph.terms.traversal import tensors
from ..plan.records import Kernel, Store
from ..plan.term_edits import replace_from_above, with_fresh_bound_dims

# Rows chosen by cost: for the dims that the results of a kernel have, which of them are its rows.
ChosenRows = tuple[tuple[frozenset[Dim], Dim], ...]


def dims_of_results(stores: Iterable[Store]) -> frozenset[Dim]:
    """The dims by which `ChosenRows` knows the kernel with these stores."""
    return frozenset(d for store in stores for d in store.order)


@dataclass(frozen=True)
class KernelShape:
    """How one kernel covers the dims of its stores: rows in tiles, `held` dims whole in a tile, the others on the grid.

    reason: why these rows were chosen.
    """

    rows: Dim | None
    held: tuple[Dim, ...]
    grid: tuple[Dim, ...]
    reason: str = ""


@dataclass(frozen=True)
class Planning:
    """What is known while a plan is made.

    given: the results as they were asked for. stores: the results, and what is stored between kernels (the parts).
    shapes: by the names of the stores' outputs. results: the names of the results' outputs. references: for each
    result, the term as the program has it, with the program's roundings. held_limit: the most elements of one dim
    that a tile holds whole. names: of all tensors. parts: each term that is stored between kernels, with the load
    that replaces it. notes: sentences for the report. focus: the output's name of the store that a pass of the
    stage `cuts` works on. pending: terms that the pass stores in its next runs on this store. plan_passes: names of
    passes that changed something. shape_reasons: for each kernel, its rows and the reason. halves: names of the
    parts that the stage `terms` has stored. chosen: terms that are stored because a plan with them takes less time,
    each before the terms that it contains. rows: for results with some dims, the rows of their kernel, chosen likewise.
    """

    given: tuple[Store, ...]
    stores: tuple[Store, ...]
    results: tuple[str, ...]
    references: tuple[Term, ...]
    held_limit: int
    names: frozenset[str]
    shapes: Mapping[str, KernelShape] = field(default_factory=dict)
    parts: tuple[tuple[Term, Term], ...] = ()
    kernels: tuple[Kernel, ...] = ()
    notes: tuple[str, ...] = ()
    focus: str = ""
    pending: tuple[Term, ...] = ()
    plan_passes: tuple[str, ...] = ()
    shape_reasons: tuple[str, ...] = ()
    halves: tuple[str, ...] = ()
    chosen: tuple[Term, ...] = ()
    rows: ChosenRows = ()

    @classmethod
    def of(
        cls, stores: Sequence[Store], references: Sequence[Term], held_limit: int, rows: ChosenRows = ()
    ) -> Planning:
        """The state before the first pass."""
        outputs = tuple(store.output.name for store in stores)
        names = {t.name for store in stores for t in tensors(store.term)}
        every = frozenset(names | {*outputs})
        return cls(tuple(stores), tuple(stores), outputs, tuple(references), held_limit, every, rows=rows)

    def index(self, name: str) -> int:
        """The place in `stores` of the store with this output."""
        return next(n for n, store in enumerate(self.stores) if store.output.name == name)

    @property
    def focused(self) -> Store:
        """The store that a pass of the stage `cuts` works on."""
        return self.stores[self.index(self.focus)]

    @property
    def shape(self) -> KernelShape:
        """The shape of the focused store, as it was chosen last."""
        return self.shapes[self.focus]

    @property
    def terms(self) -> list[Term]:
        """The terms of all stores."""
        return [store.term for store in self.stores]

    def with_terms(self, change: Callable[[Term], Term]) -> Planning:
        """Every store with its term changed."""
        return replace(self, stores=tuple(replace(store, term=change(store.term)) for store in self.stores))

    def with_note(self, note: str) -> Planning:
        """One more sentence for the report, if it is not there yet."""
        return self if note in self.notes else replace(self, notes=(*self.notes, note))

    def with_replaced(self, names: Collection[str], mapping: dict[Term, Term]) -> Planning:
        """The stores with these outputs, with each key of the mapping replaced in their terms."""
        change = lambda store: replace(store, term=replace_from_above(store.term, mapping))
        stores = (change(store) if store.output.name in names else store for store in self.stores)
        return replace(self, stores=tuple(stores))

    def with_stored(
        self, part: Term, place: int, why: str, order: tuple[Dim, ...] | None = None
    ) -> tuple[Planning, Term]:
        """The part as a store before the store at `place`, and the load that reads it.

        A part that is stored already gets no second store. `why` completes the sentence "it is stored between
        kernels: it ...". order: which dims come first among its axes, those of the focused store where it is not given.
        """
        if found := dict(self.parts).get(part):
            return self, found
        order = self.focused.order if order is None else order
        dims = (*(d for d in order if d in part.dims), *sorted(part.dims - set(order)))
        name = self.part_name
        weak = "float64" if any(store.output.dtype == "float64" for store in self.stores) else "float32"
        dtype = weak if part.dtype == "float" else part.dtype
        output = Tensor(name, dtype, tuple(d.size for d in dims))
        (term,) = with_fresh_bound_dims([part], dims)
        read = load(output, *map(iota, dims))
        after = self.with_part(Store(term, output, dims), place, f"[{', '.join(d.name for d in dims)}]", why)
        return replace(after, parts=(*self.parts, (part, read))), read

    @property
    def part_name(self) -> str:
        """A name for the next part."""
        return next(n for k in range(len(self.names) + 1) if (n := f"part{k}") not in self.names)

    def with_part(self, store: Store, place: int, axes: str, why: str) -> Planning:
        """The state with one more store, before the one at `place`, and a note that says why."""
        note = f"{store.output.name}{axes} is stored between kernels: it {why}"
        return replace(
            self,
            stores=(*self.stores[:place], store, *self.stores[place:]),
            names=self.names | {store.output.name},
            notes=(*self.notes, note),
        )


def unused_name(name: str, names: Collection[str]) -> str:
    """The name, with a number behind it if it is among the names."""
    return next(n for k in range(len(names) + 1) if (n := f"{name}{k or ''}") not in names)

"""The state that the passes of planning work on: a frozen record from which each pass makes the next one.

Invariant: a store comes after the stores that it reads. Example: `planning.with_terms(change)` is the state in which
each store's term is replaced by `change(term)`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ...egraph.terms.ops import iota, load
from ...egraph.terms.term import Dim, Tensor, Term
from ...egraph.terms.traversal import rename_dims, substitute, subterms, tensors
from ...rules.demotion import read_of_stored
from ..plan.plan_choice import FIRST_GUESS, PlanChoice
from ..plan.records import Kernel, SavedTime, Store
from ..plan.term_edits import renaming, replace_from_above, with_fresh_bound_dims

ALONE = ", and no kernel can compute it with the rest"


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
class StoredPart:
    """Something that a kernel of its own stores: every other store that has `term` reads what is stored instead.

    why: completes the sentence "it is stored between kernels: it ...". needed: no kernel can compute it with the rest;
    others save time. shared: every store reads it; else the focused one only, as loops of others may compute it beside
    their own. values, places: of a table, what is stored, and for each dim that only the values have, the index at
    which the term is read. last: the axis whose elements are neighbours in memory, where it is not the reader's last.
    """

    term: Term
    why: str
    needed: bool = False
    shared: bool = True
    values: Term | None = None
    places: tuple[tuple[Dim, Term], ...] = ()
    last: Dim | None = None

    @property
    def reason(self) -> str:
        """Why it is stored, and, where that is so, that it has to be."""
        return self.why + (ALONE if self.needed else "")

    def axes(self, order: Sequence[Dim]) -> tuple[Dim, ...]:
        """The axes of what is stored: a reader's in their order, with a dim of `places` for the first of those that it
        counts, then the others, and `last`."""
        dims = (self.values or self.term).dims
        counted = [(dim, index.dims) for dim, index in self.places if index.dims <= {*order}]
        own = dict.fromkeys(next((dim for dim, among in counted if d in among), d) for d in order)
        every = (*(d for d in own if d in dims), *sorted(dims - {*own}))
        return tuple(sorted(every, key=lambda d: d == self.last))


@dataclass(frozen=True)
class Planning:
    """What is known while a plan is made.

    given: the results as they were asked for. stores: the results, and what is stored between kernels (the parts).
    shapes: by the names of the stores' outputs. results: the names of the results' outputs. references: for each
    result, the term as the program has it, with the program's roundings. held_limit: the most elements of one dim
    that a tile holds whole. names: of all tensors. parts: each term that is stored between kernels, with the load
    that replaces it. notes: sentences for the report. focus: the output's name of the store that a pass of the
    stage `cuts` works on. plan_passes: names of passes that changed something. shape_reasons: for each kernel, its rows
    and the reason. saving: what is stored to save time only. choice: what cost decided.
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
    plan_passes: tuple[str, ...] = ()
    shape_reasons: tuple[str, ...] = ()
    saving: tuple[SavedTime, ...] = ()
    choice: PlanChoice = FIRST_GUESS

    @classmethod
    def of(cls, stores: Sequence[Store], references: Sequence[Term], held_limit: int) -> Planning:
        """The state before the first pass."""
        outputs = tuple(store.output.name for store in stores)
        names = {t.name for store in stores for t in tensors(store.term)}
        every = frozenset(names | {*outputs})
        return cls(tuple(stores), tuple(stores), outputs, tuple(references), held_limit, every)

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

    def with_stored(self, part: StoredPart) -> Planning:
        """The state in which a kernel stores the part before its first reader."""
        itself = self._stored_as(part.values or part.term, len(self.stores))  # does not read itself
        others = lambda store: itself is None or store.output != itself.attrs[0]
        readings = [self._readings(store, part) if others(store) else {} for store in self.stores]
        own = next((store for store, found in zip(self.stores, readings, strict=True) if part.term in found), None)
        if own is None:
            return self
        place = next(n for n, found in enumerate(readings) if found)
        planning, read = self.with_load(part.values or part.term, place, part.reason, part.axes(own.order))
        read = substitute(read, {iota(dim): index for dim, index in part.places})
        if part.places:
            planning = replace(planning, parts=(*planning.parts, (part.term, read)))
        for store, found in zip(self.stores, readings, strict=True):
            change = {node: rename_dims(read, names) for node, names in found.items()}
            planning = planning.with_replaced({store.output.name}, change)
        return planning

    def _readings(self, store: Store, part: StoredPart) -> dict[Term, dict[Dim, Dim]]:
        """The subterms that a store reads where the part is stored: by other names of dims, if it is a sum or a table.

        Example: Σ_e g[i, e] · o[i, e], stored for a loop over i, is read where rows are called j as well.
        """
        inside = {*subterms(store.term)}
        focused = store.output.name == self.focus
        reads = part.term in inside and (focused or (part.shared and part.term is not store.term))
        found: dict[Term, dict[Dim, Dim]] = {part.term: {}} if reads else {}
        if tensors(part.term) and (part.term.op == "reduce" or part.places):
            for node in inside - {part.term}:
                alike = node.op == part.term.op and len(node.dims) == len(part.term.dims)
                if alike and (names := renaming(part.term, node)) is not None:
                    found[node] = names
        return found

    def with_load(self, term: Term, place: int, why: str, order: tuple[Dim, ...]) -> tuple[Planning, Term]:
        """The term as a store before the store at `place`, and the load that reads it. order: its axes come first.

        A term that is stored before gets no second store. `why` is as in `StoredPart`.
        """
        if found := self._stored_as(term, place):
            return self, found
        dims = (*(d for d in order if d in term.dims), *sorted(term.dims - set(order)))
        weak = "float64" if any(store.output.dtype == "float64" for store in self.stores) else "float32"
        dtype = weak if term.dtype == "float" else term.dtype
        output = Tensor(self.part_name, dtype, tuple(d.size for d in dims))
        (fresh,) = with_fresh_bound_dims([term], dims)
        read = load(output, *map(iota, dims))
        after = self.with_part(Store(fresh, output, dims), place, f"[{', '.join(d.name for d in dims)}]", why)
        return replace(after, parts=(*after.parts, (term, read))), read

    def _stored_as(self, term: Term, place: int) -> Term | None:
        """The load of what is stored before `place` and is the term, or, of a sum, it with other names of dims."""
        before = {store.output for store in self.stores[:place]}
        parts = [(part, read) for part, read in self.parts if read.attrs[0] in before]
        if term.op == "reduce":
            for part, read in parts:
                names = renaming(part, term) if all(index.op == "iota" for index in read.args) else None
                if names is not None:
                    return rename_dims(read, names)
        return dict(parts).get(term)

    def with_saving(self, terms: Iterable[Term], before: Planning, by_cost: bool = False) -> Planning:
        """The state that says of what is stored since the one before: these terms save time, and nothing else."""
        known = {store.output for store in before.stores}
        names = tuple(store.output.name for store in self.stores if store.output not in known)
        return replace(self, saving=(*self.saving, SavedTime(tuple(terms), names, by_cost)))

    @property
    def part_name(self) -> str:
        """A name for the next part."""
        return next(n for k in range(len(self.names) + 1) if (n := f"part{k}") not in self.names)

    def with_part(self, store: Store, place: int, axes: str, why: str) -> Planning:
        """The state with one more store, before the one at `place`, and a note that says why."""
        note = f"{store.output.name}{axes} is stored between kernels by the law {read_of_stored.name}: it {why}"
        return replace(
            self,
            stores=(*self.stores[:place], store, *self.stores[place:]),
            names=self.names | {store.output.name},
            notes=(*self.notes, note),
        )

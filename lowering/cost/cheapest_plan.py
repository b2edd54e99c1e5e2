"""The plan that the estimates call fastest, among those with other rows, and those that store other parts.

Two laws stand behind it: a stored value is the value, `read(store(x)) = x`, and the tiles of any dim are all of its
places. So each choice gives a plan of the same results, and the planner cuts it as ever. Of the parts that may be
stored, sets of up to three are tried; those that could not pay, by the bytes that they move, are not planned. Then rows
are changed kernel by kernel, as long as that pays. A plan is only taken where the estimate is lower by more than its
own error. Example: 64 sequences that share a prefix of 16384 keys read it once, by a kernel with the sequences as rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain, combinations, islice
from math import prod

from ...egraph.forks import cached_property
from ...egraph.terms.sizes import UnknownSize, resolve, symbols
from ...egraph.terms.term import Dim, Term, TermError
from ...egraph.terms.traversal import all_dims, subterms
from ..analysis.chunks import keeps_numbers
from ..analysis.dim_roles import product_sides
from ..analysis.nested_sums import products_of_pairs, reductions, sides_of
from ..plan.device import H200
from ..plan.records import Alternative, Kernel, NotPlannable, Plan, Store
from ..plan.thresholds import MAX_STORED_BYTES
from ..planning.planner import plan_with, prepared
from ..planning.planning_state import ChosenRows, Planning, dims_of_results
from ..triton.kernel import emit
from .candidates import Candidate, candidates, in_order, stored_bytes
from .kernel_cost import TIMING, UNITS
from .plan_cost import KernelEstimate, plan_estimate

LEAST_GAIN = 1.15  # of an estimate over another one; the estimates' median error is 9 %
MAX_CANDIDATES_TOGETHER = 3
MAX_CHANGES_OF_ROWS = 4  # one after the other
LAUNCHES_OF_SHORT_PLANS = 3  # whose rows are not changed: their estimates are off by up to a factor of two
MAX_PLANS = 24  # that are tried; each takes some 10 to 40 ms,
MAX_NODES = 3000  # and the larger the terms are, the fewer: of all plans together, about a second
MULTIPLIED = H200.tensor_flops / (2 * H200.lanes)  # times that multiply-adds take of products of matrices
NOMINAL_SIZES = (128, 1024, 8192)  # of every symbol; a plan has to be faster with each


def cheapest_plan(stores: Sequence[Store], derivation: Sequence[str] = (), references: Sequence[Term] = ()) -> Plan:
    """The plan that computes every store in the least estimated time. Raises NotPlannable where nothing has a plan.

    references: for each store, its term as the program has it.
    """
    first = prepared(stores, references=references)
    own = plan_with(first, derivation)
    prepare = lru_cache(MAX_PLANS)(lambda rows: prepared(stores, references=references, rows=rows) if rows else first)
    try:
        search = _Search(prepare, _nominal(first))
        start = search.estimated(own)
        found = search.with_rows(search.with_stores(start))
    except (UnknownSize, TermError, NotPlannable):
        return own
    plan = own if found is start else _with_note(replace(found.plan, derivation=own.derivation), start, found)
    return replace(plan, alternatives=tuple(search.others(found)))


@dataclass(frozen=True)
class _Found:
    """A plan and what was chosen for it. estimates: with each of the sizes, of each kernel, what its launches take."""

    plan: Plan
    estimates: tuple[tuple[tuple[KernelEstimate, ...], ...], ...]
    rows: ChosenRows = ()
    stored: tuple[Term, ...] = ()

    @cached_property
    def seconds(self) -> tuple[float, ...]:
        """With each of the sizes, the time of all launches."""
        every = (chain.from_iterable(kernels) for kernels in self.estimates)
        return tuple(sum(one.estimate.seconds for one in launches) for launches in every)

    @cached_property
    def needed(self) -> tuple[float, ...]:
        """With each of the sizes, the bytes that each plan of these results moves at least."""
        return tuple(_moved_at_least(self.plan, chain.from_iterable(kernels)) for kernels in self.estimates)

    def share_of(self, other: _Found) -> float:
        """Its time in times of the other's; with several sizes the worst of them."""
        return max(mine / theirs for mine, theirs in zip(self.seconds, other.seconds, strict=True))

    def pays(self, other: _Found) -> bool:
        """Whether it takes less time than the other by more than the error of estimates."""
        return self.share_of(other) * LEAST_GAIN < 1


class _Search:
    """Plans of some results by what is chosen, each estimated with some sizes. `tried` are all of them."""

    def __init__(self, prepare: Callable[[ChosenRows], Planning], sizes: Sequence[Mapping[str, int]]):
        self._prepare, self._sizes = prepare, sizes
        self.tried: list[_Found] = []

    def estimated(self, plan: Plan, rows: ChosenRows = (), stored: tuple[Term, ...] = ()) -> _Found:
        """The plan with its estimates. Raises NotPlannable, UnknownSize, TermError."""
        alone = [replace(plan, kernels=(kernel,)) for kernel in plan.kernels]
        return _Found(plan, tuple(tuple(plan_estimate(p, sizes) for p in alone) for sizes in self._sizes), rows, stored)

    def others(self, taken: _Found) -> Iterator[Alternative]:
        """What was tried and not taken."""
        for one in self.tried:
            if one.plan is not taken.plan:
                rows = tuple(f"rows {d} for results over {', '.join(map(str, sorted(over)))}" for over, d in one.rows)
                yield Alternative(one.stored, one.share_of(taken), rows)

    def with_rows(self, found: _Found) -> _Found:
        """The plan with the rows of one kernel after the other changed, as long as that pays."""
        for _ in range(MAX_CHANGES_OF_ROWS):
            changes = islice(self._changes_of_rows(found), self._most_plans)
            plans = filter(None, (self._planned(rows, found.stored) for rows in changes))
            better = sorted((one for one in plans if one.pays(found)), key=lambda one: one.share_of(found))
            taken = next((one for one in better if _has_texts(one.plan)), None)
            if taken is None:
                break
            found = taken
        return found

    def _changes_of_rows(self, found: _Found) -> Iterator[ChosenRows]:
        """For each kernel, other rows with which it could take less time."""
        short = LAUNCHES_OF_SHORT_PLANS * TIMING.launch
        if any(max(least, short) * LEAST_GAIN >= s for least, s in zip(_least(found, 1), found.seconds, strict=True)):
            return
        for kernel, launches in zip(found.plan.kernels, found.estimates[-1], strict=True):
            dims = dims_of_results(kernel.stores)
            for rows in sorted(dims - {kernel.rows}):
                least = _multiplied_seconds(kernel, rows, launches, self._sizes[-1])
                if not _takes_most_of(least, found.seconds[-1]):
                    yield (*(pair for pair in found.rows if pair[0] != dims), (dims, rows))

    def with_stores(self, found: _Found) -> _Found:
        """The plan that stores what pays most, or the given one."""
        best = found
        for chosen in islice(self._combinations(found), self._most_plans):
            parts = in_order((term for one in chosen for term in one), self._prepare(found.rows).terms)
            one = self._planned(found.rows, parts)
            if one is not None and one.pays(found) and one.share_of(best) < 1 and _has_texts(one.plan):
                best = one
        return best

    def _combinations(self, found: _Found) -> Iterator[tuple[Candidate, ...]]:
        """Sets of candidates that could pay, small ones first.

        Where loops keep numbers alone, as over one product, they keep its scores out of memory: no scores are stored.
        """
        planning = self._prepare(found.rows)
        pays = lambda chosen: self._could_pay(found, chosen)
        if pays(()):
            single = [one for one in candidates(planning.terms, planning.held_limit) if pays((one,))]
            numbers = all(map(keeps_numbers, found.plan.kernels))
            single = [one for one in single if not (numbers and any(map(_has_scores, one)))]
            for count in range(1, MAX_CANDIDATES_TOGETHER + 1):
                yield from filter(pays, combinations(single, count))

    def _could_pay(self, found: _Found, chosen: Sequence[Candidate]) -> bool:
        """Whether these candidates take little memory, and two launches that move each byte once could be faster."""
        for sizes, seconds, needed, least in zip(
            self._sizes, found.seconds, found.needed, _least(found, 2), strict=True
        ):
            stored = sum(stored_bytes(candidate, sizes) for candidate in chosen)
            more = 2 * stored / H200.memory_bytes
            if stored > max(MAX_STORED_BYTES, needed) or _takes_most_of(least + more, seconds):
                return False
        return True

    def _planned(self, rows: ChosenRows, stored: tuple[Term, ...]) -> _Found | None:
        """The plan with these choices; None if it has none, or does not read what it stores."""
        try:
            plan = plan_with(self._prepare(rows), chosen=stored)
            if stored and not _reads_its_parts(plan):
                return None
            found = self.estimated(plan, rows, stored)
        except NotPlannable:
            return None
        self.tried.append(found)
        return found

    @cached_property
    def _most_plans(self) -> int:
        """How many plans one step of the search tries: the larger the terms, the fewer."""
        nodes = len({node for term in self._prepare(()).terms for node in subterms(term)})
        return max(1, min(MAX_PLANS, MAX_NODES // nodes))


def _takes_most_of(least: float, seconds: float) -> bool:
    """Whether a plan that takes at least so long could not pay."""
    return least * LEAST_GAIN >= seconds


def _least(found: _Found, launches: int) -> list[float]:
    """Seconds of so many launches that move each byte of inputs and results once, with each of the sizes."""
    return [launches * TIMING.launch + needed / H200.memory_bytes for needed in found.needed]


def _multiplied_seconds(
    kernel: Kernel, rows: Dim, launches: Sequence[KernelEstimate], sizes: Mapping[str, int]
) -> float:
    """Seconds that a kernel with these rows takes at least, because multiply-adds do some of its products.

    A product is one of matrices if the rows are on one of its sides alone, or if a tile holds dims of both sides.
    """
    work, multiplied = 0.0, 0.0
    for r in reductions([store.term for store in kernel.stores]):
        left, right = product_sides(r)
        if left and right:
            places = prod(resolve(d.size, sizes) for d in r.args[0].dims)
            held = all(side & {*kernel.held} for side in (left - right, right - left))
            work += places
            multiplied += 0 if held or rows in left ^ right else places
    taken = sum(one.estimate.parts.get(UNITS["tensor"], 0.0) for one in launches)
    own = resolve(kernel.rows.size, sizes) if kernel.rows is not None else 1
    filled = min(1.0, own / launches[0].config.row_tile)  # of a tile, whose other rows would not be multiplied
    return taken * filled * MULTIPLIED * multiplied / work if work else 0.0


def _nominal(planning: Planning) -> list[dict[str, int]]:
    dims = {d for store in planning.stores for d in (*store.order, *all_dims(store.term))}
    names = sorted(set().union(*(symbols(d.size) for d in dims)))
    return [dict.fromkeys(names, n) for n in NOMINAL_SIZES] if names else [{}]


def _moved_at_least(plan: Plan, launches: Iterable[KernelEstimate]) -> float:
    """The bytes of a plan's inputs and results, each that is needed once."""
    ends = {t.name for t in (*plan.inputs, *plan.outputs)}
    needed: dict[str, float] = {}
    for moved in (moved for one in launches for moved in one.estimate.traffic if moved.tensor in ends):
        needed[moved.tensor] = max(needed.get(moved.tensor, 0.0), moved.distinct)
    return sum(needed.values())


def _has_scores(term: Term) -> bool:
    """Whether a term has a number for each row and column of a product."""
    return any(sides_of(product) <= term.dims for product in products_of_pairs(term))


def _reads_its_parts(plan: Plan) -> bool:
    """Whether kernels read all that is stored between them. If not, one computes again what was to be stored."""
    parts = {store.output for kernel in plan.kernels for store in kernel.stores} - {*plan.outputs}
    return bool(parts) and parts <= {tensor for kernel in plan.kernels for tensor in kernel.inputs}


def _has_texts(plan: Plan) -> bool:
    """Whether each kernel can be written. Example: a product of float32 with a batch inside of a tile has no text."""
    try:
        return all(emit(kernel, plan) for kernel in plan.kernels)
    except NotPlannable:
        return False


def _with_note(plan: Plan, start: _Found, found: _Found) -> Plan:
    """The plan with a sentence that names both estimates."""
    chosen = " and ".join((["rows"] if found.rows else []) + (["what is stored"] if found.stored else []))
    own, mine = (f"{1e3 * one.seconds[-1]:.2g} ms" for one in (start, found))
    return replace(plan, notes=(*plan.notes, f"{chosen} chosen by estimated time: {mine} instead of {own}"))

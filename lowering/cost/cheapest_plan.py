"""The plan that the estimates call fastest, among those that store other parts, and those with other rows.

Two laws stand behind it: a stored value is the value, `read(store(x)) = x`, and the tiles of any dim are all of its
places. So each choice gives a plan of the same results. There is one mechanism: plans with one choice changed, of which
the fastest is taken, if its estimate is lower by more than its own error. First sets of up to three parts are stored as
well, then parts that the planner stores to save time are not, then rows change kernel by kernel. Example: 64 sequences
that share a prefix of 16384 keys read it once, by a kernel with the sequences as rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import chain, combinations, islice
from math import prod

from ...egraph.forks import cached_property
from ...egraph.terms.sizes import UnknownSize, resolve
from ...egraph.terms.term import Dim, Term, TermError
from ...egraph.terms.traversal import subterms
from ..analysis.chunks import keeps_numbers
from ..analysis.dim_roles import product_sides
from ..analysis.nested_sums import products_of_pairs, reductions, sides_of
from ..launch.split_loops import program_count
from ..plan.device import H200
from ..plan.plan_choice import FIRST_GUESS, ChosenRows, PlanChoice, to_data
from ..plan.records import Alternative, Kernel, NotPlannable, Plan, SavedTime, Store
from ..plan.thresholds import MAX_STORED_BYTES
from ..planning.planner import normalised, plan_with, prepared
from ..planning.planning_state import Planning, dims_of_results
from ..planning.verify import WrongPlanning
from ..stages.staged_plan import has_room
from .candidates import Candidate, candidates, in_order, stored_bytes
from .estimated_plan import Estimator, PlanEstimates, nominal_sizes
from .kernel_cost import UNITS
from .plan_cost import KernelEstimate

MAX_CANDIDATES_TOGETHER = 3
MAX_STEPS = 4  # one after the other
MAX_PLANS = 12  # that are tried with one kind of change; each takes some 10 to 40 ms,
MAX_NODES = 1500  # and the larger the terms are, the fewer: of all plans together, about a second
MULTIPLIED = H200.tensor_flops / (2 * H200.lanes)  # times that multiply-adds take of products of matrices


def cheapest_plan(stores: Sequence[Store], derivation: Sequence[str] = (), references: Sequence[Term] = ()) -> Plan:
    """The plan that computes every store in the least estimated time. Raises NotPlannable where nothing has a plan.

    references: for each store, its term as the program has it.
    """
    terms = normalised(stores, references=references)
    first = prepared(terms)
    own = plan_with(first, derivation)
    given = lru_cache(MAX_PLANS)(lambda rows: prepared(terms, PlanChoice(rows=rows)) if rows else first)
    plan, choice = _searched(own, given, nominal_sizes(first.stores))
    with suppress(KeyError):  # where it is searched each time
        return replace(plan, chosen=to_data(choice, plan, (*terms.terms, *given(choice.rows).terms)))
    return plan


def _searched(
    own: Plan, given: Callable[[ChosenRows], Planning], sizes: Sequence[Mapping[str, int]]
) -> tuple[Plan, PlanChoice]:
    """The fastest plan with what was chosen for it. own: by the first guess."""
    try:
        search = _Search(given, sizes)
        found = start = search.estimated(own, FIRST_GUESS)
        for changes, steps in CHANGES[-1:] if start.is_settled else CHANGES:
            found = search.improved(found, partial(changes, search), steps)
    except (UnknownSize, TermError, NotPlannable):
        return own, FIRST_GUESS
    plan = own if found is start else _with_note(replace(found.plan, derivation=own.derivation), start, found)
    saving = (replace(one, share=search.share_without(found, one, start)) for one in found.plan.saving)
    return replace(plan, saving=tuple(saving), alternatives=tuple(search.others(found))), found.choice


@dataclass(frozen=True)
class _Found(PlanEstimates):
    """A plan with its estimates, and what was chosen for it."""

    choice: PlanChoice = FIRST_GUESS


class _Search:
    """Plans of some results by what is chosen, each estimated with some sizes. `tried` are all of them.

    A step tries plans that differ from the one found so far in one choice, and takes the fastest that pays.
    """

    def __init__(self, prepare: Callable[[ChosenRows], Planning], sizes: Sequence[Mapping[str, int]]):
        self._prepare, self._sizes, self._estimator = prepare, sizes, Estimator(sizes)
        self.tried: list[_Found] = []

    def estimated(self, plan: Plan, choice: PlanChoice) -> _Found:
        """The plan with its estimates. Raises NotPlannable, UnknownSize, TermError."""
        known = self._estimator(plan)
        return _Found(known.plan, known.kernels, known.joined, known.needs_tiles, choice)

    def improved(self, found: _Found, changes: Callable[[_Found], Iterable[PlanChoice]], steps: int) -> _Found:
        """The plan after so many steps by these changes, or as long as one pays.

        Of plans that estimates cannot tell from the fastest, a step takes the one of the fewest kernels.
        """
        most = len(self.tried) + self._most_plans
        for _ in range(steps):
            plans = filter(None, map(self._planned, islice(changes(found), max(0, most - len(self.tried)))))
            better = sorted((one for one in plans if one.pays(found)), key=lambda one: one.share_of(found))
            fastest = next((one for one in better if one.has_texts), None)
            if fastest is None:
                break
            alike = (one for one in better if not fastest.pays(one) and one.has_texts)
            found = min(alike, key=lambda one: len(one.plan.kernels))
        return found

    def others(self, taken: _Found) -> Iterator[Alternative]:
        """What was tried and not taken."""
        for one in self.tried:
            if one.plan is not taken.plan:
                rows = (f"rows {d} for results over {', '.join(map(str, sorted(over)))}" for over, d in one.choice.rows)
                computed = in_order(one.choice.computed, self._prepare(one.choice.rows).terms)
                parts = (f"{name} in {count} parts of {dim}" for name, dim, count in one.choice.split)
                yield Alternative(one.choice.stored, one.share_of(taken), (*rows, *parts), computed)

    # What is changed: each gives choices that could pay

    def stores(self, found: _Found) -> Iterator[PlanChoice]:
        """Sets of candidates that are stored as well, small ones first.

        Where loops keep a number for each row alone, as over one product, they keep its scores out of memory: no scores
        are stored.
        """
        planning = self._prepare(found.choice.rows)
        pays = lambda chosen: self._could_pay(found, chosen)
        if not pays(()):
            return
        single = [one for one in candidates(planning.terms, planning.held_limit) if pays((one,))]
        numbers = all(keeps_numbers(kernel) and not kernel.columns for kernel in found.plan.kernels)
        single = [one for one in single if not (numbers and any(map(_has_scores, one)))]
        for count in range(1, MAX_CANDIDATES_TOGETHER + 1):
            for chosen in filter(pays, combinations(single, count)):
                yield replace(found.choice, stored=in_order(chain.from_iterable(chosen), planning.terms))

    def computations(self, found: _Found) -> Iterator[PlanChoice]:
        """Each set of terms that a cut stores to save time, computed with the rest instead."""
        for one in found.plan.saving if found.could_change else ():
            if not one.by_cost:
                yield replace(found.choice, computed=found.choice.computed | {*one.terms})

    def share_without(self, taken: _Found, saved: SavedTime, start: _Found) -> float | None:
        """The time of the plan without these parts, in times of the one taken; None if it was not tried."""
        again = replace(taken.choice, computed=taken.choice.computed | {*saved.terms})
        wanted = replace(taken.choice, stored=(), split=()) if saved.by_cost else again
        return next((one.share_of(taken) for one in (start, *self.tried) if one.choice == wanted), None)

    def rows(self, found: _Found) -> Iterator[PlanChoice]:
        """For each kernel, other rows with which it could take less time."""
        pairs = zip(found.plan.kernels, found.kernels[-1], strict=True)
        for kernel, launches in pairs if found.could_change else ():
            dims = dims_of_results(kernel.stores)
            for rows in sorted(dims - {kernel.rows}):
                least = _multiplied_seconds(kernel, rows, launches, self._sizes[-1])
                if found.beaten_by(least):
                    others = (pair for pair in found.choice.rows if pair[0] != dims)
                    yield replace(found.choice, rows=(*others, (dims, rows)))

    def splits(self, found: _Found) -> Iterator[PlanChoice]:
        """For each kernel of few programs, its loop over single indices in parts; a launch shares out other loops."""
        pairs = zip(found.plan.kernels, found.kernels[-1], strict=True)
        for kernel, launches in pairs if found.could_change else ():
            for loop in kernel.loops if len(kernel.stores) == 1 else ():
                plain = not loop.tile and all(state.gauge is None for state in loop.accumulators)
                wanted = H200.multiprocessors / _programs(kernel, launches[0], self._sizes[-1])
                if plain and (count := _parts(loop.dim, wanted)) > 1:
                    one = (kernel.stores[0].output.name, loop.dim, count)
                    if self._bytes_of_parts(kernel.stores[0], count) <= max(MAX_STORED_BYTES, found.needed[-1]):
                        yield replace(found.choice, split=(*found.choice.split, one))

    def _bytes_of_parts(self, store: Store, count: int) -> int:
        return 4 * count * prod(resolve(d.size, self._sizes[-1]) for d in store.order)

    def _could_pay(self, found: _Found, chosen: Sequence[Candidate]) -> bool:
        """Whether these candidates take little memory, and two launches that move each byte once could be faster.

        Scores may take much: it is seen in the plan whether they are stored for a part of a dim at a time.
        """
        stored = self._stored_bytes(chain.from_iterable(chosen))
        if _are_large(stored, found) and not any(_has_scores(term) for candidate in chosen for term in candidate):
            return False
        pairs = zip(found.least(2), stored, strict=True)
        return found.beaten_by(*(least + 2 * taken / H200.memory_bytes for least, taken in pairs))

    def _stored_bytes(self, terms: Iterable[Term]) -> list[int]:
        """What terms take between kernels, by sizes."""
        candidate = tuple(terms)
        return [stored_bytes(candidate, sizes) for sizes in self._sizes]

    def _planned(self, choice: PlanChoice) -> _Found | None:
        """The plan with these choices; None if it has none, does not read what it stores, or breaks an invariant.

        The last is a fault of a pass. No result depends on a plan that is only tried, so the plan found so far is kept.
        """
        try:
            plan = plan_with(self._prepare(choice.rows), choice=choice)
            if choice.stored and not _reads_its_parts(plan):
                return None
            found = self.estimated(plan, choice)
            if _are_large(self._stored_bytes(choice.stored), found) and not self._has_room(found):
                return None
        except (NotPlannable, WrongPlanning):
            return None
        self.tried.append(found)
        return found

    def _has_room(self, found: _Found) -> bool:
        """Whether what is stored between kernels takes little memory, all at once or for a part of a dim at a time."""
        return all(has_room(found.plan, *pair) for pair in zip(self._sizes, found.needed, strict=True))

    @cached_property
    def _most_plans(self) -> int:
        """How many plans are tried with one kind of change: the larger the terms, the fewer."""
        nodes = len({node for term in self._prepare(()).terms for node in subterms(term)})
        return max(1, min(MAX_PLANS, MAX_NODES // max(1, nodes)))


# What is changed, in order, and in how many steps.
CHANGES = (
    (_Search.stores, 1),
    (_Search.computations, MAX_STEPS),
    (_Search.rows, MAX_STEPS),
    (_Search.splits, MAX_STEPS),
)


def _programs(kernel: Kernel, launch: KernelEstimate, sizes: Mapping[str, int]) -> int:
    return max(1, program_count(kernel, launch.config.row_tile, launch.config.loop_tile, sizes))


def _parts(dim: Dim, wanted: float) -> int:
    """Equal parts of a dim, of two indices at least: as many as wanted or up to four times more, or else fewer; 1 where
    there are none."""
    size = dim.size if isinstance(dim.size, int) else 1
    counts = [n for n in range(1, size // 2 + 1) if size % n == 0 and n <= 4 * wanted]
    return next((n for n in counts if n >= wanted), max(counts, default=1))


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


def _are_large(stored: Sequence[int], found: PlanEstimates) -> bool:
    """Whether what is stored takes more memory than is little, and than inputs and results. stored: bytes, by sizes."""
    return any(taken > max(MAX_STORED_BYTES, needed) for taken, needed in zip(stored, found.needed, strict=True))


def _has_scores(term: Term) -> bool:
    """Whether a term has a number for each row and column of a product."""
    return any(sides_of(product) <= term.dims for product in products_of_pairs(term))


def _reads_its_parts(plan: Plan) -> bool:
    """Whether kernels read all that is stored between them. If not, one computes again what was to be stored."""
    parts = {*plan.parts}
    return bool(parts) and parts <= {tensor for kernel in plan.kernels for tensor in kernel.inputs}


def _with_note(plan: Plan, start: _Found, found: _Found) -> Plan:
    """The plan with a sentence that names both estimates, or says that the other plan could not be written."""
    stored = found.choice.stored or found.choice.computed or found.choice.split
    changed = {"rows": found.choice.rows, "what is stored": stored}
    chosen = " and ".join(what for what, choice in changed.items() if choice)
    own, mine = (f"{1e3 * one.seconds[-1]:.2g} ms" for one in (start, found))
    by_time = f"by estimated time: {mine} instead of {own}"
    why = by_time if start.has_texts else "because a kernel could not be written otherwise"
    return replace(plan, notes=(*plan.notes, f"{chosen} chosen {why}"))

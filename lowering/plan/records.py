"""The Plan: what runs, as a frozen tree of records over terms. No strings of code, no device.

A kernel runs once per point of its grid dims and per tile of its row dim; held dims are whole in a tile; loops run one
after another over tiles of a sequential dim and fill accumulators; the result term, over the accumulators' reductions,
is stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ...egraph.terms.term import Dim, Tensor, Term
from ...egraph.terms.traversal import subterms

VARIES_BY_DISTANCE = "products over distances of rows and keys are not invariant: a tile of rows is computed as one"


class NotPlannable(Exception):
    """A term that has no plan yet; the message says why, for the report."""


OUT_OF_RANGE = "onepass: an index that is read from a tensor is out of range"


class IndexOutOfRange(IndexError):
    """An index that a tensor holds is no place of the axis that it indexes; eager raises for it, too."""


@dataclass(frozen=True)
class Limit:
    """A bound on the loop's coordinate: an integer term without the loop dim; `rising`: it grows with the rows.

    As an upper limit it keeps j < bound, as a lower limit j >= bound.
    """

    bound: Term
    rising: bool


@dataclass(frozen=True)
class Range:
    """Coordinates j of a loop with every lower limit <= j < every upper limit, within the length.

    `exact`: the guard keeps all of them; else it must be tested.
    """

    uppers: tuple[Limit, ...]
    lowers: tuple[Limit, ...]
    exact: bool


@dataclass(frozen=True)
class BlockMap:
    """A guard that reads tensors by the loop's or the rows' coordinate: its tiles can be classed before the loop runs.

    The map is over `dims` (grid dims of the guard), blocks of `rows` (one dim, or none) and blocks of the loop; an
    executor that knows its tile sizes builds it (lowering/masks/block_map.py) where it pays, and otherwise tests the
    guard. finite_mask: a tile is empty only where each of its rows keeps something in another one.
    """

    guard: Term
    loop: Dim
    dims: tuple[Dim, ...]
    rows: tuple[Dim, ...]
    finite_mask: bool = False


@dataclass(frozen=True)
class Accumulator:
    """A state carried through a loop. For the rescaled monoid one scale (gauge) serves all values (the mantissas).

    reductions[n] is the reduce term whose finished value is this accumulator's n-th component: for "rescaled" it is
    reduce(rescaled, dim, scaled(gauge, values[n])), otherwise reduce(monoid, dim, values[0]). The guard of the loop is
    already taken out of gauge and values: an element for which it is false is absent (the identity).

    added_to: for each value the number of the value whose total it is added to, of itself or of one before it; empty if
    each has a total of its own. Such totals are read only as their sum, so the finished value of one that was added to
    another's is 0.
    """

    name: str
    monoid: str
    gauge: Term | None
    values: tuple[Term, ...]
    reductions: tuple[Term, ...]
    added_to: tuple[int, ...] = ()

    @property
    def totals(self) -> tuple[int, ...]:
        """For each value, the number of the value whose total it is added to."""
        return self.added_to or tuple(range(len(self.values)))


@dataclass(frozen=True)
class Loop:
    """One pass over tiles of `dim`. Elements where `guard` is false are absent from every accumulator.

    outer: dims around it: for each index of them the loop runs through its tiles, into the same accumulators. Limits,
    the guard and the map may depend on them. A loop without a `tile` goes through its own dim by single indices, too:
    its accumulators hold rows and columns.

    Every element that the guard keeps is in one of `ranges`; they may overlap, and each tile runs once. A tile outside
    all of them is empty and never runs, one inside an exact range is full and needs no guard. None at all: nothing is
    kept. With one range (causal, windows), `uppers`, `lowers` and `limits_only` say it; with several they say the sound
    "no limits, test everywhere". `map`: an executor may follow a block map instead of the ranges. `finite_mask`:
    elements that the guard drops have a large negative score instead: in a row that keeps nothing all weigh alike.
    """

    dim: Dim
    tile: str
    accumulators: tuple[Accumulator, ...]
    guard: Term | None = None
    ranges: tuple[Range, ...] = (Range((), (), True),)
    map: BlockMap | None = None
    part: Dim | None = None
    finite_mask: bool = False
    outer: tuple[Dim, ...] = ()

    @property
    def single(self) -> tuple[Dim, ...]:
        """The dims that it goes through by single indices."""
        return self.outer if self.tile else (*self.outer, self.dim)

    @property
    def over(self) -> str:
        """The loop's dim for readers, with the dims around it: "i for each m"."""
        return f"{self.dim} for each {' and '.join(map(str, self.outer))}" if self.outer else str(self.dim)

    @property
    def uppers(self) -> tuple[Limit, ...]:
        return self.ranges[0].uppers if len(self.ranges) == 1 else ()

    @property
    def lowers(self) -> tuple[Limit, ...]:
        return self.ranges[0].lowers if len(self.ranges) == 1 else ()

    @property
    def limits_only(self) -> bool:
        return len(self.ranges) == 1 and self.ranges[0].exact

    @property
    def limits(self) -> tuple[Limit, ...]:
        """The limits of all ranges."""
        return tuple(limit for r in self.ranges for limit in (*r.uppers, *r.lowers))

    @property
    def length_is_data(self) -> bool:
        """Whether a tensor says how far the loop goes, as the length of each sequence does."""
        return bool(_loads(limit.bound for limit in self.limits))

    @property
    def hides_places(self) -> bool:
        """Whether data says which elements are left out, and these have indices that a tensor holds: they may hold
        anything, as the entries of a page table behind a length do."""
        guards = () if self.guard is None else (self.guard,)
        data = _loads((*guards, *(limit.bound for limit in self.limits)))
        values = [value for state in self.accumulators for value in (state.gauge, *state.values) if value is not None]
        indices = _loads(index for load in _loads(values) for index in load.args)
        along = {self.dim}.union(*(load.dims for load in data))  # an entry for a sequence without keys is hidden, too
        return bool(data) and any(not along.isdisjoint(load.dims) for load in indices)


def _loads(terms: Iterable[Term]) -> list[Term]:
    return [node for term in terms for node in subterms(term) if node.op == "load"]


@dataclass(frozen=True)
class Store:
    """One result: `term` is written to `output`, whose axes run over the dims of `order`.

    places: if given, the index along each axis instead, over these dims; elements with the same places are added, in an
    order that is the same in each run but for a joined kernel (lowering/joined). Executors do that along diagonals: one
    index is column - row, or row - column, up to a constant, and the others are dims of the grid.

    combine: "set" writes. "add" adds the sum of the term over the kernel's rows, which `order` then lacks: each program
    adds the sum over its own rows to memory that is zero before the kernel runs. The guard of the loop that writes it
    says which elements there are. In which order programs add is not fixed.
    """

    term: Term
    output: Tensor
    order: tuple[Dim, ...]
    places: tuple[Term, ...] = ()
    combine: str = "set"

    @property
    def adds(self) -> bool:
        """Whether it adds to what is there."""
        return self.combine == "add"


@dataclass(frozen=True)
class Kernel:
    """One launch. Every store's order has the grid and the rows; held dims that it lacks, its term lacks too. One whose
    order has a loop's dim is written by that loop, tile by tile; where the loop's guard keeps nothing its term is 0.

    columns: without loops, a dim that programs take tiles of beside those of rows, for products of both. exact: the
    sums of products whose computed factors must not be rounded to half precision (lowering/analysis/exact_products.py).
    """

    name: str
    grid: tuple[Dim, ...]
    rows: Dim | None
    row_tile: str
    held: tuple[Dim, ...]
    loops: tuple[Loop, ...]
    stores: tuple[Store, ...]
    inputs: tuple[Tensor, ...]
    exact: frozenset[Term] = frozenset()
    columns: tuple[Dim, ...] = ()

    @property
    def tiled(self) -> tuple[Dim, ...]:
        """The rows and columns, tiles of which are a program's."""
        return (self.rows, *self.columns) if self.rows is not None else ()

    @property
    def around(self) -> tuple[Dim, ...]:
        """The dims that loops go through by single indices."""
        return tuple(dict.fromkeys(dim for loop in self.loops for dim in loop.single))

    def written_by(self, loop: Loop | None) -> list[Store]:
        """The stores of a loop; those behind all loops."""
        dims = {one.dim for one in self.loops} if loop is None else {loop.dim}
        return [store for store in self.stores if bool(dims & {*store.order}) == (loop is not None)]

    @property
    def zeroed(self) -> tuple[str, ...]:
        """The outputs that hold zeros before the launch: loops that may leave out tiles write them, or they are added
        to."""
        skipped = {s.output.name for loop in self.loops if loop.guard is not None for s in self.written_by(loop)}
        return tuple(s.output.name for s in self.stores if s.places or s.adds or s.output.name in skipped)

    @property
    def result(self) -> Term:
        """What the first store writes."""
        return self.stores[0].term

    @property
    def output(self) -> Tensor:
        """Where the first store writes it."""
        return self.stores[0].output

    @property
    def order(self) -> tuple[Dim, ...]:
        """The dims of the first store's axes."""
        return self.stores[0].order


@dataclass(frozen=True)
class SavedTime:
    """Parts that are stored together to save time only: their terms, and the names of what is stored. by_cost: cost
    chose them; else a cut did. share: the estimated time of the plan without them, in times of that with them; None
    where nobody has tried that.
    """

    terms: tuple[Term, ...]
    names: tuple[str, ...]
    by_cost: bool = False
    share: float | None = None

    def __str__(self) -> str:
        without = f"without {', '.join(self.names)} the plan would take"
        return f"{without} {self.share:.3g} times as long, by the estimates" if self.share is not None else ""


@dataclass(frozen=True)
class Alternative:
    """A plan that was not taken: what it would store between kernels, which rows kernels would have, and its estimated
    time in times of the one taken. rows: as text, where they are not the planner's first guess. computed: what it would
    not store that the planner stores to save time.
    """

    stored: tuple[Term, ...]
    share: float
    rows: tuple[str, ...] = ()
    computed: tuple[Term, ...] = ()


@dataclass(frozen=True)
class Plan:
    """Kernels in launch order; a later one may load what an earlier one stores. `outputs` are the results, in order.

    A store may write a result as a tensor of the same name in which one axis is two
    (lowering/planning/reshape_dims.py). plan_passes: names of the planning passes that changed something.
    shape_reasons: for each kernel, its rows and why these were chosen. read_back: how the plan was held against the
    results that were asked for (lowering/readback); empty where nobody has done it. alternatives: other plans of the
    same results that estimates called no faster. saving: what is stored to save time only. chosen: what a search by
    cost found, as data (plan_choice.py); empty where there was none.

    piece: keys of a piece of each loop, counted from key 0, in an invariant plan: the bits of a row of a result depend
    on nothing but the row and its keys. 0: executors choose tiles, configurations and parts by sizes. weights: "e4m3"
    where weights of e4m3 values may be rounded to that type, relative to the largest score of their row so far.
    factors_apart: in pieces, whether a constant factor of scores is left out of their maximum though it is no power of
    two: where all programs of the same text have the same factor.
    """

    kernels: tuple[Kernel, ...]
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    derivation: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default=())
    plan_passes: tuple[str, ...] = field(default=(), compare=False)
    shape_reasons: tuple[str, ...] = field(default=(), compare=False)
    read_back: str = field(default="", compare=False)
    alternatives: tuple[Alternative, ...] = field(default=(), compare=False)
    saving: tuple[SavedTime, ...] = field(default=(), compare=False)
    chosen: Mapping = field(default_factory=dict, compare=False)
    piece: int = 0
    weights: str = "half"
    factors_apart: bool = False

    @property
    def output(self) -> Tensor:
        """The first result."""
        return self.outputs[0]

    @property
    def parts(self) -> list[Tensor]:
        """What kernels store for one another. A result may be stored with one axis as two, so it is known by its name.
        """
        results = {tensor.name for tensor in self.outputs}
        return [s.output for k in self.kernels for s in k.stores if s.output.name not in results]

    @property
    def between(self) -> tuple[str, ...]:
        """The notes, and what the plan would take without parts that are stored to save time."""
        return (*self.notes, *filter(None, map(str, self.saving)))

    @property
    def deterministic(self) -> bool:
        """Whether no kernel adds to memory in an order that is not fixed."""
        return not any(store.adds for kernel in self.kernels for store in kernel.stores)

    @property
    def passes(self) -> int:
        """The largest number of loops over one dim in one kernel chain: how often the longest data is read."""
        counts: dict[Dim, int] = {}
        for kernel in self.kernels:
            for loop in kernel.loops:
                counts[loop.dim] = counts.get(loop.dim, 0) + 1
        return max(counts.values(), default=0)

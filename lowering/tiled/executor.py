"""Runs a plan with torch operations, tile by tile: any device, memory that does not grow with the square of a length.

Invariant: a tile that the loop's limits call empty never runs; an absent element changes nothing.
The default executor where there is no GPU, and the oracle of the emitters.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product as points
from math import inf, prod

import torch

from ...egraph.terms.sizes import resolve
from ...egraph.terms.term import Dim, Tensor, Term
from ...egraph.terms.traversal import all_dims, subterms
from ..analysis.product_terms import Summand, summand
from ..masks.loop_ranges import ends, tile_classes, tile_range
from ..plan.queries import diagonal
from ..plan.records import VARIES_BY_DISTANCE, Accumulator, Kernel, Limit, Loop, NotPlannable, Plan, Store
from ..plan.thresholds import HIDDEN_SCORE
from .accumulators import AccumulatorState, finite_sum_over_rows
from .compiled_tiles import MAX_ELEMENTS, CompiledTiles, TileBody
from .tile_ops import Frame, along_diagonals, differences, full
from .tile_program import TileBlock, as_stored, over_differences, scale_early

MAX_ELEMENTS_ON_A_CPU = (
    1 << 20
)  # elements of the largest temporary of a tile on a CPU: 4 MiB in float32 stay in its cache
MAX_ELEMENTS_ON_OTHER_DEVICES = 64 << 20  # on a device where a launch costs more than a cache miss
FIRST_TILE_ROWS, FIRST_TILE_COLUMNS = 256, 512
_NOTHING_KEPT = object()


class InputMismatch(ValueError):
    """The tensors given are not those of the plan."""


def run_tiled(plan: Plan, tensors: Mapping[str, torch.Tensor], sizes: Mapping[str, int] | None = None) -> torch.Tensor:
    """The plan's first output, as tiled_results has it."""
    return tiled_results(plan, tensors, sizes)[0]


def tiled_results(
    plan: Plan,
    tensors: Mapping[str, torch.Tensor],
    sizes: Mapping[str, int] | None = None,
    until: float = inf,
    compiled: CompiledTiles | None = None,
) -> tuple[torch.Tensor, ...]:
    """The plan's outputs. `sizes` gives symbolic sizes; those that are a tensor's axis are read off it.

    Raises OutOfTime if a tile is left at the time `until`, as time.perf_counter() has it.
    """
    values = dict(tensors)
    known = {**_sizes_of(plan, values), **(sizes or {})}
    _check(plan, values, known)
    with torch.no_grad():
        for kernel in plan.kernels:
            values.update(_run_kernel(kernel, values, known, plan.piece, until, compiled))
    return tuple(values[output.name].view([resolve(n, known) for n in output.shape]) for output in plan.outputs)


def _sizes_of(plan: Plan, values: Mapping[str, torch.Tensor]) -> dict[str, int]:
    given = [(t.shape, values[t.name].shape) for t in plan.inputs if t.name in values]
    return {n: length for shape, actual in given for n, length in zip(shape, actual) if isinstance(n, str)}


def _check(plan: Plan, values: Mapping[str, torch.Tensor], sizes: Mapping[str, int]) -> None:
    for t in plan.inputs:
        if t.name not in values:
            raise InputMismatch(f"no tensor was given for {t.name}")
        shape, dtype = [resolve(n, sizes) for n in t.shape], str(values[t.name].dtype).removeprefix("torch.")
        if (list(values[t.name].shape), dtype) != (shape, t.dtype):
            raise InputMismatch(f"{t.name} is {dtype}{list(values[t.name].shape)}, the plan wants {t.dtype}{shape}")


@dataclass(frozen=True)
class LoopTile:
    """Coordinates `start` to `stop` of a loop. full: the guard keeps every element."""

    start: int
    stop: int
    full: bool


class LoopProgram:
    """A loop's terms as blocks: `before` once per tile of rows and index of the dims around the loop, `each` per tile,
    `keeps` per tile that is not full."""

    def __init__(self, loop: Loop, rows: Dim | None, finished: frozenset[Term], stores: Sequence[Store] = ()):
        self.loop, self.rows = loop, rows
        self.stores, self.adding = ([s for s in stores if s.adds == adds] for adds in (False, True))
        written = [store.term for store in (*self.stores, *self.adding)]
        bodies = [body for accumulator in loop.accumulators for body in _bodies(accumulator)]
        early = scale_early((*bodies, *written), finished.__contains__, loop.dim)
        self.written = [early[store.term] for store in self.stores]
        guarded = frozenset() if loop.guard is None else loop.guard.dims
        found = (summand(early[store.term], rows, "sum", None, guarded) for store in self.adding)
        self.added = [_with_stored_side(sides) for sides in found]
        self.gauges = [None if a.gauge is None else early[a.gauge] for a in loop.accumulators]
        pairs = zip(loop.accumulators, self.gauges, strict=True)
        self.summands = [self._summands(accumulator, gauge, early) for accumulator, gauge in pairs]
        self.pair = None if rows is None else (rows, loop.dim)
        uses = Counter(self._roots())
        self.across = self._difference_dims(uses)
        self._make_blocks(uses, finished)

    def _summands(self, accumulator: Accumulator, gauge: Term | None, early: Mapping[Term, Term]) -> list[Summand]:
        """The accumulator's values as summands, of terms that are scaled early."""
        dim, guard, weight = self.loop.dim, self.loop.guard, None if gauge is None else gauge.dims
        guarded = frozenset() if guard is None else guard.dims
        values = (early[value] for value in accumulator.values)
        found = (summand(value, dim, accumulator.monoid, weight, guarded, self.rows) for value in values)
        return [_with_stored_side(sides) for sides in found]

    def _roots(self) -> list[Term]:
        """What a tile computes, once for each use."""
        gauges = [gauge for gauge in self.gauges if gauge is not None]
        sums = [*(x for s in self.summands for x in s), *self.added]
        return [*gauges, *(term for x in sums for term in x.terms), *self.written]

    def _difference_dims(self, roots: Iterable[Term]) -> set[Dim]:
        """The dims of differences between rows and columns over which a tile computes products."""
        found = (over_differences(node, self.pair) for root in roots for node in subterms(root))
        return {x.across for s in self.summands for x in s if x.across} | {x.dim for x in found if x}

    def _make_blocks(self, uses: Counter[Term], finished: frozenset[Term]) -> None:
        moving, given = {self.loop.dim, *self.across}, finished.__contains__
        outside = lambda term: term in finished or not term.dims & moving
        self.each = TileBlock(uses, outside, self.pair)
        self.body = TileBody(self.each, outside, (self.written, self.added), self.rows)
        self.owned = frozenset(term for term in self.each.owned if uses[term] == 1)
        self.keeps = TileBlock([] if self.loop.guard is None else [self.loop.guard], outside)
        self.before = TileBlock([*self.each.inputs, *self.keeps.inputs], given)
        self.bounds = TileBlock([limit.bound for limit in self.loop.limits], given)

    def run(self, environment: dict, frame: Frame, tile: int, outputs: dict) -> dict[Term, torch.Tensor]:
        """The finished values of the loop's reductions; what the loop stores is written to the outputs."""
        visit = lambda states: self._visit(environment, frame, tile, None, states)
        dropped = -inf
        states = self._visit(environment, frame, tile, outputs, self._states(exact=False, dropped=dropped))
        if self.loop.finite_mask and any(state.lacks_rows() for state in states):
            dropped = HIDDEN_SCORE
            states = visit(self._states(exact=False, dropped=dropped))
        if any(state.doubtful() for state in states):
            states = visit(self._states(exact=True, dropped=dropped))
        return {reduction: value for state in states for reduction, value in state.finished(frame)}

    def _visit(
        self, environment: dict, frame: Frame, tile: int, outputs: dict | None, states: list[AccumulatorState]
    ) -> list[AccumulatorState]:
        """The states with all of the loop's tiles added, for each index of the dims around it.

        outputs: where the loop's stores are written; None where an earlier visit has done it.
        """
        for indices in points(*(range(resolve(d.size, frame.sizes)) for d in self.loop.outer)):
            frame.ranges.update({d: (n, n + 1) for d, n in zip(self.loop.outer, indices, strict=True)})
            outer = {**environment, **self.before.run(environment, frame)}
            self._pass(outer, frame, self._tiles(outer, frame, tile), outputs, states)
        return states

    def _states(self, exact: bool, dropped: float) -> list[AccumulatorState]:
        """New states. dropped: the gauge of elements that the guard drops."""
        given = zip(self.loop.accumulators, self.gauges, self.summands, strict=True)
        return [AccumulatorState(a, g, s, (self.rows, self.loop.dim), exact, dropped) for a, g, s in given]

    def _tiles(self, outer: dict, frame: Frame, tile: int) -> list[LoopTile]:
        """The tiles of this part of the loop that may keep an element."""
        length = resolve(self.loop.dim.size, frame.sizes)
        found = []
        for r in self.loop.ranges:
            uppers, lowers = ([self._ends(x, outer, frame) for x in side] for side in (r.uppers, r.lowers))
            found.append((tile_range(tile, length, uppers, lowers), r.exact))
        shared = self._share(tile_classes(found), frame)
        return [LoopTile(n * tile, min((n + 1) * tile, length), full) for n, full in shared.items()]

    def _share(self, tiles: dict[int, bool], frame: Frame) -> dict[int, bool]:
        """The tiles of one part of the loop: neighbours."""
        if self.loop.part is None:
            return tiles
        number, share = frame.ranges[self.loop.part][0], -(-len(tiles) // resolve(self.loop.part.size, frame.sizes))
        return dict(list(tiles.items())[number * share : (number + 1) * share])

    def _pass(
        self, outer: dict, frame: Frame, tiles: list[LoopTile], outputs: dict | None, states: list[AccumulatorState]
    ) -> None:
        """Visits the tiles and adds each to the states."""
        hidden = any(state.below != -inf for state in states)
        for tile in tiles:
            frame.begin_tile()
            self._set_ranges(frame, tile)
            drops = None if tile.full or self.loop.guard is None else self._drops(outer, frame, hidden)
            if drops is _NOTHING_KEPT:
                continue
            if self._by_compiled(outer, drops, frame, outputs, states):
                continue
            frame.drops = drops
            values = self.each.run(outer, frame)
            frame.drops = None
            if outputs is not None:
                self._write(values, drops, frame, outputs)
            for state in states:
                state.add(values, drops, self.owned, frame)

    def _by_compiled(
        self,
        outer: dict,
        drops: torch.Tensor | None,
        frame: Frame,
        outputs: dict | None,
        states: list[AccumulatorState],
    ) -> bool:
        """Whether the tile was added, and stored, by a compiled function."""
        if frame.compiled is None or any(state.exact for state in states):
            return False
        made = frame.compiled.add(self.body, outer, drops, states, frame)
        if made is None:
            return False
        if outputs is None:
            return True
        stored, added = made[: len(self.stores)], made[len(self.stores) :]
        for store, value in zip(self.stores, stored, strict=True):
            _write(store, value, frame, outputs)
        for store, value, sides in zip(self.adding, added, self.added, strict=True):
            if drops is not None and not torch.isfinite(value.sum()):
                frame.drops = drops
                values = self.each.run(outer, frame)
                frame.drops = None
                value = finite_sum_over_rows(sides, self.rows, values, drops, frame)
            _write(store, value, frame, outputs)
        return True

    def _write(self, values: dict, drops: torch.Tensor | None, frame: Frame, outputs: dict) -> None:
        """Writes what the loop's stores have of the tile."""
        for store, term in zip(self.stores, self.written, strict=True):
            _write(store, values[term], frame, outputs)
        for store, sides in zip(self.adding, self.added, strict=True):
            _write(store, finite_sum_over_rows(sides, self.rows, values, drops, frame), frame, outputs)

    def _set_ranges(self, frame: Frame, tile: LoopTile) -> None:
        """The frame covers the tile, along the loop and along differences between rows and columns."""
        frame.ranges[self.loop.dim] = (tile.start, tile.stop)
        for dim in self.across:
            rows = resolve(self.rows.size, frame.sizes)
            frame.ranges[dim] = differences(frame.ranges[self.rows], frame.ranges[self.loop.dim], rows)

    def _drops(self, outer: dict, frame: Frame, hidden: bool) -> object:
        """Where the guard is false, as a tensor; None if nowhere. On a CPU, this answer costs less than a tile.

        hidden: dropped elements have a number for a gauge, so that a tile of nothing else counts too.
        """
        frame.drops = True  # one part of a guard may keep what another drops
        keeps = self.keeps.run(outer, frame)[self.loop.guard]
        frame.drops = None
        if frame.device.type == "cpu":
            least, most = keeps.view(torch.uint8).aminmax()  # a tenth of the time of any() and all()
            if not hidden and not most:
                return _NOTHING_KEPT
            if least:
                return None
        return ~keeps

    def _ends(self, limit: Limit, outer: dict, frame: Frame) -> tuple[int, int]:
        """The least and largest bound over all rows and grid points of the tile."""
        start, stop = frame.ranges.get(self.rows, (0, 1))
        found = [self._bounds_at(limit, outer, frame, row) for row in dict.fromkeys((start, stop - 1))]
        if self.rows is not None:
            frame.ranges[self.rows] = (start, stop)
        least, largest = (ends(limit, found[0][k], found[-1][k])[k] for k in (0, 1))
        return least, largest

    def _bounds_at(self, limit: Limit, outer: dict, frame: Frame, row: int) -> tuple[int, int]:
        if self.rows is not None:
            frame.ranges[self.rows] = (row, row + 1)
        bound = self.bounds.run(outer, frame)[limit.bound]
        return int(bound.min()), int(bound.max())


def _with_stored_side(sides: Summand) -> Summand:
    """The sides of a product with the right one as memory has it."""
    return sides if sides.right is None else replace(sides, right=as_stored(sides.right))


def _bodies(a: Accumulator) -> list[Term]:
    return [*([] if a.gauge is None else [a.gauge]), *a.values]


class KernelProgram:
    """A kernel compiled to blocks; made once per kernel, independent of sizes."""

    def __init__(self, kernel: Kernel):
        self.kernel = kernel
        self.loops: list[LoopProgram] = []
        finished: set[Term] = set()
        for loop in kernel.loops:
            self.loops.append(LoopProgram(loop, kernel.rows, frozenset(finished), kernel.written_by(loop)))
            finished.update(r for a in loop.accumulators for r in a.reductions)
        self.stores = kernel.written_by(None)
        self.result = TileBlock([store.term for store in self.stores], finished.__contains__)
        self.axes = {dim: axis for axis, dim in enumerate(self._dims())}

    def _dims(self) -> dict[Dim, None]:
        """Every dim of a tile, in the order of its axes."""
        kernel = self.kernel
        bodies = [body for loop in kernel.loops for a in loop.accumulators for body in _bodies(a)]
        terms = [*bodies, *(store.term for store in kernel.stores)]
        tiled = [*kernel.grid, *kernel.columns, *_rows(kernel), *kernel.around, *(loop.dim for loop in kernel.loops)]
        stored = [dim for store in kernel.stores for dim in store.order]
        computed = [dim for term in terms for dim in all_dims(term)]
        across = [dim for program in self.loops for dim in program.across]
        return dict.fromkeys([*tiled, *kernel.held, *stored, *computed, *across])

    def widest(self, length: Mapping[Dim, int]) -> int:
        """Elements of the largest temporary, for tiles of the given lengths."""
        length = {**length, **{d: length[p.rows] + length[p.loop.dim] for p in self.loops for d in p.across}}
        blocks = (*(p.each for p in self.loops), self.result)
        steps = [s for block in blocks for s in block.steps]
        made = [s.node for s in steps if s.kind != "load" or s.args]  # a load without gathering is a view
        return max((prod(length[d] for d in t.dims) for t in made), default=1)


@lru_cache(maxsize=512)
def _program(kernel: Kernel) -> KernelProgram:
    return KernelProgram(kernel)


def tile_lengths(program: KernelProgram, length: Mapping[Dim, int], budget: int, piece: int = 0) -> dict[Dim, int]:
    """The length of a tile along each dim, so that a temporary has at most `budget` elements.

    piece: the length of a loop's tiles, whatever the sizes are; 0: as long as fits. Example: 8 heads of 4096 rows. The
    grid of heads is cut first, then rows and loop, down to 16.
    """
    streamed = _rows(program.kernel) if piece else _streamed(program.kernel)
    fixed = dict.fromkeys((loop.dim for loop in program.kernel.loops if piece and loop.tile), piece)
    tile = _shrunk(program, _first_tile(program.kernel, length) | fixed, budget, streamed)
    for dim in streamed:
        while tile[dim] < length[dim] and program.widest({**tile, dim: 2 * tile[dim]}) <= budget // 4:
            tile[dim] = min(2 * tile[dim], length[dim])
    return tile


def _chosen_tile(program: KernelProgram, length: Mapping[Dim, int], frame: Frame, piece: int) -> dict[Dim, int]:
    """The length of a tile along each dim. Compiled tiles fit a core's own cache, and are alike."""
    if frame.compiled is None:
        budget = MAX_ELEMENTS_ON_A_CPU if frame.device.type == "cpu" else MAX_ELEMENTS_ON_OTHER_DEVICES
        return tile_lengths(program, length, budget, piece)
    tile = tile_lengths(program, length, MAX_ELEMENTS * torch.get_num_threads())
    return tile | {d: alike(length[d], tile[d]) for d in _streamed(program.kernel)}


def alike(length: int, tile: int) -> int:
    """The length of as many tiles, of which only the last may be shorter, by as little as possible."""
    return -(-length // -(-length // tile)) if length else tile


def _first_tile(kernel: Kernel, length: Mapping[Dim, int]) -> dict[Dim, int]:
    """The tile to begin with: the whole grid, some rows and columns, one part of a loop."""
    most = dict.fromkeys((loop.dim for loop in kernel.loops), FIRST_TILE_COLUMNS) | dict.fromkeys(
        _rows(kernel), FIRST_TILE_ROWS
    )
    tile = {**length, **{dim: max(1, min(extent, length[dim])) for dim, extent in most.items()}}
    parts = [loop.part for loop in kernel.loops if loop.part is not None]
    return tile | dict.fromkeys((*parts, *kernel.around), 1)


def _shrunk(program: KernelProgram, tile: dict[Dim, int], budget: int, rest: Sequence[Dim]) -> dict[Dim, int]:
    """The tile, halved along one dim at a time until its temporaries fit the budget or nothing can be halved.

    rest: the dims that are halved after the grid.
    """
    grid = (*program.kernel.grid, *program.kernel.columns)
    while program.widest(tile) > budget:
        batched = [dim for dim in grid if tile[dim] > 1]
        streamed = [dim for dim in rest if tile[dim] > 16]
        if not (batched or streamed):
            break
        largest = batched[0] if batched else max(streamed, key=tile.__getitem__)
        tile = {**tile, largest: -(-tile[largest] // 2)}
    return tile


def _rows(kernel: Kernel) -> list[Dim]:
    return [] if kernel.rows is None else [kernel.rows]


def _streamed(kernel: Kernel) -> list[Dim]:
    """Dims of the loops, then the rows."""
    return [*_loop_dims(kernel), *_rows(kernel)]


def _loop_dims(kernel: Kernel) -> list[Dim]:
    return [loop.dim for loop in kernel.loops]


def _run_kernel(
    kernel: Kernel,
    tensors: Mapping[str, torch.Tensor],
    sizes: Mapping[str, int],
    piece: int = 0,
    until: float = inf,
    compiled: CompiledTiles | None = None,
) -> dict:
    """The kernel's outputs by name. piece: as Plan has it. until: as in `tiled_results`."""
    program = _program(kernel)
    if piece and any(loop.across for loop in program.loops):
        raise NotPlannable(VARIES_BY_DISTANCE)
    device = next((t.device for t in tensors.values()), torch.device("cpu"))  # a kernel may have no inputs of its own
    outputs = {store.output.name: _allocated(store.output, sizes, device) for store in kernel.stores}
    for name in kernel.zeroed:
        outputs[name].zero_()
    apart = frozenset(program.axes[d] for d in (*kernel.grid, *kernel.tiled, *kernel.around, *_loop_dims(kernel)))
    frame = Frame(program.axes, tensors, sizes, device, invariant=bool(piece), apart=apart, until=until)
    length = {d: resolve(d.size, sizes) for d in program.axes}
    if compiled is not None and not piece:
        frame.compiled, frame.rounds = compiled, compiled.rounds
    tile = _chosen_tile(program, length, frame, piece)
    moving = {*kernel.around, *_loop_dims(kernel)}
    frame.ranges.update({d: (0, length[d]) for d in program.axes if d not in moving})
    tiled = [*kernel.grid, *kernel.columns, *_rows(kernel)]
    for ranges in points(*(_tiles(length[d], tile[d]) for d in tiled)):
        frame.ranges.update(zip(tiled, ranges))
        frame.begin_tile()
        _run_tile(program, frame, tile, outputs)
    return outputs


def _allocated(tensor: Tensor, sizes: Mapping[str, int], device: torch.device) -> torch.Tensor:
    shape = [resolve(n, sizes) for n in tensor.shape]
    return torch.empty(shape, dtype=getattr(torch, tensor.dtype), device=device)


def _tiles(length: int, tile: int) -> Iterator[tuple[int, int]]:
    return ((start, min(start + tile, length)) for start in range(0, length, max(tile, 1)))


def _run_tile(program: KernelProgram, frame: Frame, tile: Mapping[Dim, int], outputs: dict) -> None:
    environment: dict[Term, object] = {}
    for loop in program.loops:
        environment.update(loop.run(environment, frame, tile[loop.loop.dim], outputs))
    values = program.result.run(environment, frame)
    for store in program.stores:
        _write(store, values[store.term], frame, outputs)


def _write(store: Store, value: torch.Tensor, frame: Frame, outputs: dict) -> None:
    """Writes a tile's value to its place."""
    if store.places:
        _add_along_diagonals(store, value, frame, outputs[store.output.name])
        return
    axes = [frame.axes[d] for d in store.order]
    value = value.reshape((1,) * len(frame.axes)) if value.dim() == 0 else value
    rest = [k for k in range(len(frame.axes)) if k not in axes]
    value = value.permute(axes + rest).reshape([value.shape[k] for k in axes])
    target = outputs[store.output.name][tuple(slice(*frame.ranges[d]) for d in store.order)]
    if store.adds:
        target.add_(value)
    else:
        target.copy_(value)


def _add_along_diagonals(store: Store, value: torch.Tensor, frame: Frame, output: torch.Tensor) -> None:
    """Adds up a tile's value along its diagonals, at the places that the store says."""
    found = diagonal(store)
    dims = (*found.points, found.rows, found.columns)
    for dim in dims:
        value = full(value, dim, frame)
    axes = [frame.axes[d] for d in dims]
    rest = [k for k in range(value.dim()) if k not in axes]
    sums = along_diagonals(value.permute(axes + rest).flatten(len(dims) - 1))
    place = found.constant + sum(c * resolve(atom.attrs[0], frame.sizes) for atom, c in found.sizes.items())
    first = place + frame.ranges[found.columns][0] - (frame.ranges[found.rows][1] - 1)
    points = tuple(slice(*frame.ranges[d]) for d in found.points)
    output[(*points, slice(first, first + sums.shape[-1]))] += sums

"""Runs a plan with torch operations, tile by tile: any device, memory that does not grow with the square of a length.

Invariant: a tile that the loop's limits call empty never runs; an absent element changes nothing.
The default executor where there is no GPU, and the oracle of the emitters.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import product as points
from math import inf, prod

import torch

from ...egraph.terms.sizes import resolve
from ...egraph.terms.term import Dim, Tensor, Term
from ...egraph.terms.traversal import all_dims, subterms
from ..analysis.product_terms import summand
from ..masks.loop_ranges import ends, tile_classes, tile_range
from ..plan.records import Accumulator, Kernel, Limit, Loop, Plan, Store
from ..plan.thresholds import HIDDEN
from .accumulators import State
from .tile_ops import Frame, differences
from .tile_program import Block, over_differences, scale_early

BUDGET = 1 << 20  # elements of the largest temporary of a tile on a CPU: 4 MiB in float32 stay in its cache
OTHER_BUDGET = 64 << 20  # on a device where a launch costs more than a cache miss
ROWS, COLUMNS = 256, 512  # the tile to begin with, of rows and of a loop


_NOTHING_KEPT = object()


class InputMismatch(ValueError):
    """The tensors given are not those of the plan."""


def run_tiled(plan: Plan, tensors: Mapping[str, torch.Tensor], sizes: Mapping[str, int] | None = None) -> torch.Tensor:
    """The plan's first output, as tiled_results has it."""
    return tiled_results(plan, tensors, sizes)[0]


def tiled_results(plan: Plan, tensors: Mapping[str, torch.Tensor], sizes=None) -> tuple[torch.Tensor, ...]:
    """The plan's outputs. `sizes` gives symbolic sizes; those that are a tensor's axis are read off it."""
    values = dict(tensors)
    known = {**_sizes_of(plan, values), **(sizes or {})}
    _check(plan, values, known)
    with torch.no_grad():
        for kernel in plan.kernels:
            values.update(_run_kernel(kernel, values, known))
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


class LoopProgram:
    """A loop's terms as blocks: `before` once per tile of rows, `each` per tile, `keeps` per tile that is not full."""

    def __init__(self, loop: Loop, rows: Dim | None, finished: frozenset[Term], stores: Sequence[Store] = ()):
        self.loop, self.rows, self.stores = loop, rows, stores
        self.across: set[Dim] = set()  # of differences that its products go over
        given = finished.__contains__
        outside = lambda t: t in finished or not t.dims & {loop.dim, *self.across}
        written = [store.term for store in stores]
        early = scale_early((*(t for a in loop.accumulators for t in _bodies(a)), *written), given, loop.dim)
        self.written = [early[term] for term in written]
        self.gauges = [early[a.gauge] if a.gauge is not None else None for a in loop.accumulators]
        guarded = loop.guard.dims if loop.guard is not None else frozenset()
        self.summands = [
            [summand(early[v], loop.dim, a.monoid, None if g is None else g.dims, guarded, rows) for v in a.values]
            for a, g in zip(loop.accumulators, self.gauges)
        ]
        pair = (rows, loop.dim) if rows is not None else None
        uses = Counter(
            [g for g in self.gauges if g is not None]
            + [t for s in self.summands for x in s for t in x.terms]
            + self.written
        )
        skews = (over_differences(n, pair) for root in uses for n in subterms(root))
        self.across = {x.across for s in self.summands for x in s if x.across} | {x.dim for x in skews if x}
        self.each = Block(uses, outside, pair)
        self.owned = frozenset(t for t in self.each.owned if uses[t] == 1)
        self.keeps = Block([loop.guard] if loop.guard is not None else [], outside)
        self.before = Block([*self.each.inputs, *self.keeps.inputs], given)
        self.bounds = Block([limit.bound for limit in loop.limits], given)

    def run(self, environment: dict, frame: Frame, tile: int, outputs: dict) -> dict[Term, torch.Tensor]:
        """The finished values of the loop's reductions; what the loop stores is written to the outputs."""
        outer = {**environment, **self.before.run(environment, frame)}
        length = resolve(self.loop.dim.size, frame.sizes)
        tiles = self._tiles(outer, frame, tile)
        run = lambda **how: self._pass(outer, frame, tile, tiles, length, outputs, **how)
        dropped = -inf
        states = run(exact=False, dropped=dropped)
        if self.loop.finite_mask and any(s.lacks_rows() for s in states):
            dropped = HIDDEN
            states = run(exact=False, dropped=dropped)
        if any(s.doubtful() for s in states):
            states = run(exact=True, dropped=dropped)
        return {r: value for s in states for r, value in s.finished(frame)}

    def _tiles(self, outer: dict, frame: Frame, tile: int) -> dict[int, bool]:
        """The tiles that may hold something, and whether each is full."""
        length = resolve(self.loop.dim.size, frame.sizes)
        found = []
        for r in self.loop.ranges:
            uppers, lowers = ([self._ends(x, outer, frame) for x in side] for side in (r.uppers, r.lowers))
            found.append((tile_range(tile, length, uppers, lowers), r.exact))
        return self._share(tile_classes(found), frame)

    def _share(self, tiles: dict[int, bool], frame: Frame) -> dict[int, bool]:
        """The tiles of one part of the loop: neighbours."""
        if self.loop.part is None:
            return tiles
        number, share = frame.ranges[self.loop.part][0], -(-len(tiles) // resolve(self.loop.part.size, frame.sizes))
        return dict(list(tiles.items())[number * share : (number + 1) * share])

    def _pass(
        self, outer, frame, tile: int, tiles: dict, length: int, outputs: dict, exact: bool, dropped: float
    ) -> list[State]:
        """dropped: the gauge of what the guard drops."""
        loop, given = self.loop, zip(self.loop.accumulators, self.gauges, self.summands)
        states = [State(a, g, s, (self.rows, loop.dim), exact, dropped) for a, g, s in given]
        for n, full in tiles.items():
            frame.ranges[loop.dim] = (n * tile, min((n + 1) * tile, length))
            for dim in self.across:
                rows = resolve(self.rows.size, frame.sizes)
                frame.ranges[dim] = differences(frame.ranges[self.rows], frame.ranges[loop.dim], rows)
            drops = None if full or loop.guard is None else self._drops(outer, frame, dropped != -inf)
            if drops is _NOTHING_KEPT:
                continue
            values = self.each.run(outer, frame)
            for store, term in zip(self.stores, self.written, strict=True):
                _write(store, values[term], frame, outputs)
            for state in states:
                state.add(values, drops, self.owned, frame)
        return states

    def _drops(self, outer: dict, frame: Frame, counts: bool):
        """Where the guard is false; None if nowhere. Waiting for this answer costs less than a tile, on a CPU.

        counts: what is dropped still counts.
        """
        keeps = self.keeps.run(outer, frame)[self.loop.guard]
        if frame.device.type == "cpu":
            if not counts and not keeps.any():
                return _NOTHING_KEPT
            if keeps.all():
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
        self.result = Block([store.term for store in self.stores], finished.__contains__)
        rows = [kernel.rows] if kernel.rows else []
        first = (*kernel.grid, *kernel.columns, *rows, *(loop.dim for loop in kernel.loops))
        terms = [b for p in self.loops for a in p.loop.accumulators for b in _bodies(a)]
        terms += [store.term for store in kernel.stores]
        orders = [d for store in kernel.stores for d in store.order]
        across = [d for p in self.loops for d in p.across]
        every = dict.fromkeys((*first, *kernel.held, *orders, *(d for t in terms for d in all_dims(t)), *across))
        self.axes = {d: k for k, d in enumerate(every)}

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


def tile_lengths(program: KernelProgram, length: dict[Dim, int], budget: int) -> dict[Dim, int]:
    """Tiles of the grid (a batch), rows and loops whose temporaries fit the budget: the grid is split first."""
    kernel, tile = program.kernel, dict(length)
    loops = [loop.dim for loop in kernel.loops]
    rows, grid = [kernel.rows] if kernel.rows is not None else [], (*kernel.grid, *kernel.columns)
    tile.update({d: max(1, min(ROWS if d in rows else COLUMNS, length[d])) for d in (*rows, *loops)})
    tile.update({loop.part: 1 for loop in kernel.loops if loop.part is not None})
    while program.widest(tile) > budget:
        cuttable = [d for d in grid if tile[d] > 1] or [d for d in (*loops, *rows) if tile[d] > 16]
        if not cuttable:
            break
        largest = cuttable[0] if cuttable[0] in grid else max(cuttable, key=tile.__getitem__)
        tile[largest] = -(-tile[largest] // 2)
    for d in (*loops, *rows):
        while tile[d] < length[d] and program.widest({**tile, d: 2 * tile[d]}) <= budget // 4:
            tile[d] = min(2 * tile[d], length[d])
    return tile


def _run_kernel(kernel: Kernel, tensors: Mapping[str, torch.Tensor], sizes: Mapping[str, int]) -> dict:
    """The kernel's outputs by name."""
    program = _program(kernel)
    device = next((t.device for t in tensors.values()), torch.device("cpu"))  # a kernel may have no inputs of its own
    outputs = {store.output.name: _allocated(store.output, sizes, device) for store in kernel.stores}
    frame = Frame(program.axes, tensors, sizes, device)
    length = {d: resolve(d.size, sizes) for d in program.axes}
    tile = tile_lengths(program, length, BUDGET if device.type == "cpu" else OTHER_BUDGET)
    loops = {loop.dim for loop in kernel.loops}
    frame.ranges.update({d: (0, length[d]) for d in program.axes if d not in loops})
    tiled = [*kernel.grid, *kernel.columns, *([kernel.rows] if kernel.rows is not None else [])]
    for ranges in points(*(_tiles(length[d], tile[d]) for d in tiled)):
        frame.ranges.update(zip(tiled, ranges))
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
    axes = [frame.axes[d] for d in store.order]
    value = value.reshape((1,) * len(frame.axes)) if value.dim() == 0 else value
    rest = [k for k in range(len(frame.axes)) if k not in axes]
    value = value.permute(axes + rest).reshape([value.shape[k] for k in axes])
    outputs[store.output.name][tuple(slice(*frame.ranges[d]) for d in store.order)].copy_(value)

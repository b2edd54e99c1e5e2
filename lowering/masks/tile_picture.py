"""The classes of all tiles of a loop as numbers, for a picture of its mask: skipped, partial, full, or not known here.

Ranges give them as executors do; where a block map decides and its tensors are at hand, the mask's elements do. Nothing
runs by these classes. Example: j <= i over 128 x 128 in tiles of 64 is [[PARTIAL, EMPTY], [FULL, PARTIAL]].
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice, product

import numpy as np

from ...egraph.terms.evaluate import evaluate
from ...egraph.terms.ops import const, iota
from ...egraph.terms.sizes import resolve
from ...egraph.terms.term import Dim, Term
from ...egraph.terms.traversal import tensors
from ..plan.records import Kernel, Limit, Loop
from .block_map import EMPTY, FULL, PARTIAL, replaced
from .loop_ranges import ends, tile_range

UNKNOWN = 3  # decided by data that is not at hand
SMALL_TILE, TILE = 16, 64  # elements on a side; small ones where the whole side has fewer than SHORT
SHORT = 512
MAX_TILES = 1024  # on a side: longer sides have larger tiles
MAX_ELEMENTS = 1 << 22  # of a mask that are evaluated; of a larger one, every n-th row
MAX_PICTURES = 3  # of a loop: for the first indices of the dims around rows and columns

Arrays = Mapping[str, np.ndarray]
Sizes = Mapping[str, int]


@dataclass(frozen=True, eq=False)
class TilePicture:
    """Classes [tiles of rows, tiles of the loop]: EMPTY, PARTIAL, FULL, UNKNOWN.

    tile, lengths: of rows and of the loop, in elements. at: the indices of other dims. missing: tensors that decide and
    are not at hand. step: each so many rows were looked at.
    """

    rows: str
    loop: str
    tile: tuple[int, int]
    lengths: tuple[int, int]
    classes: np.ndarray
    at: tuple[tuple[str, int], ...] = ()
    missing: tuple[str, ...] = ()
    step: int = 1

    def share(self, kind: int) -> float:
        """The share of tiles of a class."""
        return float((self.classes == kind).mean())


def tile_pictures(kernel: Kernel, loop: Loop, sizes: Sizes, arrays: Arrays) -> list[TilePicture]:
    """A picture for each of the first indices around rows and columns; equal ones once. None of a loop without a mask.

    arrays: the mask's tensors by name, as far as they are at hand. Raises UnknownSize, and TermError for a mask that
    cannot be evaluated.
    """
    if loop.guard is None:
        return []
    found: list[TilePicture] = []
    for at in islice(_indices(kernel, loop, sizes), MAX_PICTURES):
        made = _picture(kernel, loop, sizes, arrays, at)
        if not any(np.array_equal(made.classes, other.classes) for other in found):
            found.append(made)
    return found


def _indices(kernel: Kernel, loop: Loop, sizes: Sizes) -> Iterator[dict[Dim, int]]:
    """Indices of the dims other than rows and columns that the mask has."""
    deciding = loop.guard.dims | {dim for limit in loop.limits for dim in limit.bound.dims}
    others = [d for d in (*kernel.grid, *loop.outer) if d in deciding and d not in (kernel.rows, loop.dim)]
    ranges = (range(resolve(d.size, sizes)) for d in others)
    return (dict(zip(others, at)) for at in product(*ranges))


def _picture(kernel: Kernel, loop: Loop, sizes: Sizes, arrays: Arrays, at: Mapping[Dim, int]) -> TilePicture:
    lengths = (1 if kernel.rows is None else resolve(kernel.rows.size, sizes)), resolve(loop.dim.size, sizes)
    tile = _tile(lengths[0]), _tile(lengths[1])
    mask = _Mask(kernel.rows, loop, tile, lengths, dict(sizes), arrays, at)
    missing = mask.missing((loop.guard, *(limit.bound for limit in loop.limits)))
    if loop.map is not None and not mask.missing([loop.guard]):
        classes, step = mask.by_elements()
    else:
        classes, step = mask.by_ranges(), 1
    named = tuple((str(d), n) for d, n in at.items())
    return TilePicture(str(kernel.rows or ""), str(loop.dim), tile, lengths, classes, named, missing, step)


def _tile(length: int) -> int:
    tile = TILE if length >= SHORT else min(SMALL_TILE, 1 << (length - 1).bit_length())
    while -(-length // tile) > MAX_TILES:
        tile *= 2
    return tile


@dataclass(frozen=True, eq=False)
class _Mask:
    """The mask of a loop with numbers for everything: sizes, the tiles, and indices of other dims."""

    rows: Dim | None
    loop: Loop
    tile: tuple[int, int]
    lengths: tuple[int, int]
    sizes: dict[str, int]
    arrays: Arrays
    at: Mapping[Dim, int]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(-(-length // tile) for length, tile in zip(self.lengths, self.tile))

    def missing(self, terms: Iterable[Term]) -> tuple[str, ...]:
        """Names of the tensors that the terms read and that are not at hand."""
        names = dict.fromkeys(t.name for term in terms for t in tensors(term))
        return tuple(name for name in names if name not in self.arrays)

    def values(self, term: Term, step: int = 1) -> np.ndarray:
        """The term for each step-th row and each column, with an axis for each that it depends on."""
        places: dict[Term, Term] = {iota(dim): const(n) for dim, n in self.at.items()}
        column = Dim(self.loop.dim.name, self.lengths[1])
        places[iota(self.loop.dim)] = iota(column)
        dims = [column]
        if self.rows is not None:
            row = Dim(self.rows.name, -(-self.lengths[0] // step))
            places[iota(self.rows)] = iota(row) * const(step) if step > 1 else iota(row)
            dims.insert(0, row)
        found = np.asarray(evaluate(replaced(term, places, self.sizes), self.arrays, dims, self.sizes))
        return found if self.rows is not None else found[None]

    def by_elements(self) -> tuple[np.ndarray, int]:
        """The classes by the number of elements that each tile keeps, and which rows were looked at: each so many."""
        least = -(-self.lengths[0] * self.lengths[1] // MAX_ELEMENTS)
        step = min(1 << max(0, least - 1).bit_length(), self.tile[0])  # as the tile, a power of 2
        shape = -(-self.lengths[0] // step), self.lengths[1]
        kept = np.broadcast_to(self.values(self.loop.guard, step).astype(bool), shape)
        starts = [np.arange(0, n, t) for n, t in zip(kept.shape, (self.tile[0] // step, self.tile[1]))]
        blocks = lambda fold, values: fold.reduceat(fold.reduceat(values, starts[0], axis=0), starts[1], axis=1)
        some, every = blocks(np.logical_or, kept), blocks(np.logical_and, kept)
        classes = np.where(every, FULL, np.where(some, PARTIAL, EMPTY)).astype(np.int8)
        if self.loop.finite_mask:  # a row that keeps nothing weighs all its elements alike
            alone = np.logical_or.reduceat(~kept.any(axis=1), starts[0])
            classes[alone] = np.maximum(classes[alone], PARTIAL)
        return classes, step

    def by_ranges(self) -> np.ndarray:
        """The classes by the loop's ranges, as executors compute them."""
        classes = np.full(self.shape, EMPTY, np.int8)
        unknown = bool(self.missing([self.loop.guard]))
        for found in self.loop.ranges:
            uppers, lowers = self._ends(found.uppers), self._ends(found.lowers)
            surely = found.exact and not self.missing(limit.bound for limit in (*found.uppers, *found.lowers))
            for n in range(self.shape[0]):
                tiles = tile_range(self.tile[1], self.lengths[1], [x[n] for x in uppers], [x[n] for x in lowers])
                mine = classes[n]
                tested = slice(tiles.start, tiles.stop)
                partial = UNKNOWN if unknown and not surely else PARTIAL
                mine[tested] = np.where(mine[tested] == EMPTY, partial, mine[tested])
                if surely:
                    mine[tiles.full_start : tiles.full_stop] = FULL
        return classes

    def _ends(self, limits: Iterable[Limit]) -> list[list[tuple[int, int]]]:
        """For each limit that is known, the (least, largest) bound of each tile of rows."""
        found = []
        for limit in limits:
            if self.missing([limit.bound]):
                continue
            at_rows = np.broadcast_to(self.values(limit.bound)[:, :1], (self.lengths[0], 1))[:, 0]
            firsts = range(0, self.lengths[0], self.tile[0])
            pairs = ((first, min(first + self.tile[0], self.lengths[0]) - 1) for first in firsts)
            found.append([ends(limit, int(at_rows[first]), int(at_rows[last])) for first, last in pairs])
        return found

"""Block maps: which tiles of a loop hold anything that a guard over data keeps, and which hold nothing else.

A plan made of the guard's own term counts what every tile keeps; tile_lists.py lists the tiles to visit. A map is kept
while the tensors it was read from are the same and unchanged.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod
from threading import local

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from ...egraph.forks import cached_property, lock
from ...egraph.terms.ops import cast, const, eq, iota, le, logical_and, make, minimum, reduce, where
from ...egraph.terms.sizes import resolve
from ...egraph.terms.term import Dim, Tensor, Term
from ...egraph.terms.traversal import rebuild, subterms, tensors
from ..plan.records import BlockMap, Kernel, Store

LEAST_TILES = 64  # pairs of row tile and loop tile: fewer are not worth a launch
MOST_MAPS = 32
WHOLE = 1024  # columns of a tile that says what rows keep
EMPTY, PARTIAL, FULL = 0, 1, 2


def capturing(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def stream_of(device: torch.device) -> int:
    """Where what is made now is there for whoever comes later."""
    return torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0


@dataclass(frozen=True)
class Dealt:
    """How a table deals out items [grid..., tiles of rows] to so many programs, `few` grid points at a time and `last`
    at the end. `listed` is the shape of their lists, 1 where one serves a whole axis; an item costs `overhead` columns
    beside those of its list."""

    programs: int
    items: tuple[int, ...]
    listed: tuple[int, ...]
    few: int
    last: int
    overhead: int

    def in_turn(self, device: torch.device) -> torch.Tensor:
        """The table in which programs take the items in turn."""
        make = _in_turn.__wrapped__ if capturing(device) else _in_turn  # what a graph makes is there when it runs
        return make(prod(self.items), self.programs, device, stream_of(device))


@lru_cache(maxsize=64)
def _in_turn(total: int, programs: int, device: torch.device, stream: int) -> torch.Tensor:
    """int32 [1 + the most items of a program, programs], as lowering/gluon/work_order.py's `dealt` has it."""
    rounds = -(-total // programs)
    table = torch.arange(-programs, rounds * programs, dtype=torch.int32, device=device).view(1 + rounds, programs)
    table[0] = rounds
    table[0, total - (rounds - 1) * programs :] = rounds - 1
    return table


@dataclass(frozen=True)
class Tiling:
    """A map with the numbers of a launch: the tile of rows (1 where the guard ignores them) and of the loop.

    together: how many tiles of rows go through one list (`shared_visits`), 0 for a list each (`visits`).
    dealt: how the items that go through the lists are dealt out, None where every program takes those that come next.
    """

    record: BlockMap
    row_tile: int
    tile: int
    sizes: tuple[tuple[str, int], ...]
    together: int = 0
    dealt: Dealt | None = None

    def __hash__(self) -> int:
        return self.number

    @cached_property
    def number(self) -> int:
        """The hash, found once: a call looks its map up by it."""
        return hash((self.record, self.row_tile, self.tile, self.sizes, self.together, self.dealt))

    @cached_property
    def reads(self) -> tuple[str, ...]:
        """Names of the tensors that the guard reads."""
        return tuple(t.name for t in tensors(self.record.guard))

    def length(self, dim: Dim) -> int:
        return resolve(dim.size, dict(self.sizes))

    def by_rows(self) -> Tiling | None:
        """The same with tiles of one row, which say what a row keeps; None where the guard ignores the rows."""
        tile = min(WHOLE, 1 << (self.length(self.record.loop) - 1).bit_length())
        return replace(self, row_tile=1, tile=tile, together=0, dealt=None) if self.record.rows else None

    def static(self, dim: Dim) -> Dim:
        return Dim(dim.name, self.length(dim))

    def blocks(self, dim: Dim, tile: int) -> Dim:
        return Dim(f"{dim.name} block", -(-self.length(dim) // tile))

    def at(self, dim: Dim, tile: int, within: Term) -> Term:
        """The coordinate by block and place in it. Past the end the last one is repeated: any and all stay the same."""
        at = iota(self.blocks(dim, tile)) * const(tile) + within
        return at if self.length(dim) % tile == 0 else minimum(at, const(self.length(dim) - 1))

    def place(self, dim: Dim, tile: int) -> tuple[Term, Dim]:
        """The coordinate, and the dim of places in a block."""
        within = Dim(f"{dim.name} in block", tile)
        return self.at(dim, tile, iota(within)), within


def pays(kernel: Kernel, record: BlockMap, row_tile: int, tile: int, sizes: Mapping[str, int]) -> bool:
    """Whether finding the map costs at most half of what the loop costs without it, counted in elements of a tile.

    Reading a mask element costs as much as eight comparisons of ids; a product over 8 held elements costs one.
    """
    length = lambda dim: resolve(dim.size, sizes)
    rows = -(-length(kernel.rows) // row_tile) if kernel.rows is not None else 1
    dense = any(n.op == "load" and {kernel.rows, record.loop} <= n.dims for n in subterms(record.guard))
    map_cost = prod(map(length, record.dims)) * (9 if dense else 1) * (1 + record.faint)
    loop_cost = prod(map(length, kernel.grid)) * sum(length(d) for d in kernel.held) / 16
    return rows * -(-length(record.loop) // tile) >= LEAST_TILES and 2 * map_cost <= loop_cost


def class_store(tiling: Tiling) -> Store:
    """The store that finds EMPTY, PARTIAL or FULL for [dims..., row blocks, loop blocks], counting what a tile keeps.

    A short last tile of the loop is never full, so that full tiles need no mask.
    """
    record, tile = tiling.record, tiling.tile
    column, within = tiling.place(record.loop, tile)
    length, block = tiling.length(record.loop), tiling.blocks(record.loop, tile)
    order, inside = [*map(tiling.static, record.dims)], [within]
    places = {iota(d): iota(tiling.static(d)) for d in record.dims} | {iota(record.loop): column}
    for rows in record.rows:
        places[iota(rows)], within_rows = tiling.place(rows, tiling.row_tile)
        order.append(tiling.blocks(rows, tiling.row_tile))
        inside.append(within_rows)
    order.append(block)
    kept = cast(replaced(record.guard, places, dict(tiling.sizes)), "int32")
    for dim in inside:
        kept = reduce("sum", dim, kept)
    one = lambda n: cast(const(n), "int32")
    whole = eq(kept, one(prod(d.size for d in inside)))
    if length % tile:
        whole = logical_and(whole, le((iota(block) + 1) * const(tile), const(length)))
    classes = where(whole, one(FULL), minimum(kept, one(PARTIAL)))
    output = Tensor("classes of tiles", "int32", tuple(d.size for d in order))
    return Store(classes, output, tuple(order))


def replaced(guard: Term, places: Mapping[Term, Term], sizes: Mapping[str, int]) -> Term:
    """The guard at other coordinates, with numbers for its sizes."""

    def change(node: Term, args: tuple[Term, ...]) -> Term:
        if node.op == "size":
            return const(resolve(node.attrs[0], sizes))
        return places.get(node) or (node if args == node.args else make(node.op, args, node.attrs))

    return rebuild(guard, change)


def where_rows_keep(classes: torch.Tensor, by_rows: torch.Tensor, tiling: Tiling) -> torch.Tensor:
    """The classes [..., (row tiles,) n] of a faint guard, of those [..., (rows,) m] of single rows: no tile is empty
    for rows of which one keeps nothing.
    """
    kept = (by_rows != EMPTY).any(-1)
    if tiling.record.rows:
        missing = -kept.shape[-1] % tiling.row_tile
        kept = torch.nn.functional.pad(kept, (0, missing), value=True).unflatten(-1, (-1, tiling.row_tile)).all(-1)
    return torch.where(kept.unsqueeze(-1), classes, classes.clamp(min=PARTIAL))


def shared_visits(classes: torch.Tensor, together: int) -> torch.Tensor:
    """[..., rows, n] classes as int32 [..., rows / together, 1 + 2 · together + n]: one list for several tiles of rows.

    How many tiles; for each tile of rows where in the list its own begin and end, one at least; then by rising number
    2^together · number + the sum of 2^w over the tiles of rows w for which that tile is not full.
    """
    missing = -classes.shape[-2] % together
    classes = torch.nn.functional.pad(classes, (0, 0, 0, missing), value=EMPTY).unflatten(-2, (-1, together))
    count, kept = classes.shape[-1], classes != EMPTY
    visited = kept.any(-2)
    numbers = torch.arange(count, device=classes.device)
    order = torch.where(visited, numbers, numbers + count).sort(-1).values % count
    place = (visited.cumsum(-1) - 1).unsqueeze(-2)
    last = torch.where(kept, place + 1, 0).amax(-1)
    first = torch.where(kept, place, count).amin(-1).where(last > 0, torch.zeros_like(last))
    bit = 2 ** torch.arange(together, device=classes.device).unsqueeze(-1)
    entries = numbers * 2**together + ((classes != FULL) * bit).sum(-2)
    ends = torch.stack([first, last.clamp(min=1)], -1).flatten(-2)
    return torch.cat([visited.sum(-1, keepdim=True).clamp(min=1), ends, entries.gather(-1, order)], -1).int()


CALL = local()  # `sources`: names of what the tensors of this thread's call are, in their order, or nothing
Found = tuple[torch.Tensor, ...]
Build = Callable[[Tiling, Mapping[str, torch.Tensor]], Found]


def _state(tensor: torch.Tensor) -> tuple | None:
    """What changes when a tensor is written to or moved, or shows other places; None for one that keeps no version."""
    if tensor.is_inference():
        return None
    memory = tensor.untyped_storage()._cdata, tensor.data_ptr()
    return tensor._version, *memory, tensor.shape, tensor.stride(), tensor.dtype


def _owner(tensor: torch.Tensor) -> torch.Tensor:
    """What lives as long as the data is the same tensor's: a view shares memory and version with its base."""
    return tensor if tensor.is_inference() or tensor._base is None else tensor._base


class MapCache:
    """Visit lists by tiling and by the very tensors they were read from.

    A tensor counts as unchanged if it is the same object, or a like view of the same one, with the same version
    counter. Writes that torch does not count (to `x.data`, through NumPy, or a pointer) do not; a tensor made under
    inference_mode has no counter and is read each time. A compiler that writes one value into another's memory does not
    count that either: where a call says what its tensors are, only the same one is unchanged. At most MOST_MAPS are
    kept, none of a tensor that is gone. What is wanted again may be worth more work: `again` makes it of what was
    built, once.
    """

    def __init__(self):
        self._kept: OrderedDict[tuple, tuple] = OrderedDict()
        self._lock = lock()

    def get(
        self,
        tiling: Tiling,
        values: Mapping[str, torch.Tensor],
        build: Build,
        again: Callable[[Tiling, Found], Found] | None = None,
    ) -> Found:
        read = [values[name] for name in tiling.reads]
        states = tuple(map(_state, read))
        device = read[0].device
        if None in states or capturing(device):  # a replayed graph must read the mask again
            return build(tiling, values)
        owners = [*map(_owner, read)]
        said = dict(zip(values, getattr(CALL, "sources", "").split(",")))
        sources = map(said.get, tiling.reads)
        key = (tiling, stream_of(device), *sources, *map(id, owners), *(state[1:] for state in states))
        versions = [state[0] for state in states]
        with self._lock:
            found, last = self._known(key, versions, owners)
        if last:
            return found
        known = found is not None
        found = again(tiling, found) if known else build(tiling, values)
        with self._lock:
            living = tuple(map(weakref.ref, owners)), tuple(StorageWeakRef(t.untyped_storage()) for t in read)
            self._kept[key] = *living, versions, found, known or again is None
            self._forget()
        return found

    def _known(self, key: tuple, versions: list[int], owners: list[torch.Tensor]) -> tuple[Found | None, bool]:
        """What is kept of unchanged tensors, and whether it is all that will be made of it."""
        references, _, seen, found, last = self._kept.get(key, ((), (), None, None, False))
        if seen != versions or any(ref() is not t for ref, t in zip(references, owners, strict=True)):
            return None, False
        self._kept.move_to_end(key)
        return found, last

    def _forget(self) -> None:
        """Drops maps of tensors that are gone, and the oldest ones. Memory that is kept in mind has its address to
        itself: where `x.data` is replaced, what comes there later is no other's."""
        gone = lambda owners, memory: any(t() is None for t in owners) or any(m.expired() for m in memory)
        for key in [k for k, (owners, memory, *_) in self._kept.items() if gone(owners, memory)]:
            del self._kept[key]
        while len(self._kept) > MOST_MAPS:
            self._kept.popitem(last=False)

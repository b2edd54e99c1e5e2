"""Block maps: for a guard over data, which tiles of a loop are empty, full or partial.

`class_store` is a store that counts what each tile keeps, and tile_lists.py lists the tiles to visit. A map is kept as
long as the tensors that it was read from are the same and unchanged. Example: a mask of documents over 64 x 64 tiles.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from math import prod
from threading import local

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from ...egraph.forks import cached_property, lock
from ...egraph.terms.ops import cast, const, eq, iota, le, logical_and, make, minimum, reduce, where
from ...egraph.terms.sizes import resolve
from ...egraph.terms.term import Dim, Tensor, Term
from ...egraph.terms.traversal import rebuild, subterms, tensors
from ..analysis.data_indices import at_nearest_places
from ..plan.records import BlockMap, Kernel, Store
from .tile_ends import TileDecision, decided

MIN_TILES = 64  # pairs of row tile and loop tile: fewer are not worth a launch
MAX_MAPS = 32  # in a cache
MAX_TILE_OF_ONE_ROW = 1024  # columns of a tile of one row, which classifies what the row keeps
MIN_PAIRS_BY_ENDS = 1 << 28  # of row and column, such as 16384 of each: fewer are looked at in 0.4 ms (estimated)
EMPTY, PARTIAL, FULL = 0, 1, 2


def capturing(device: torch.device) -> bool:
    """Whether the current stream of the device captures a CUDA graph."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


NOTHING = torch.zeros(1, dtype=torch.int32)  # a table for a kernel that reads none


@cache
def _nothing_on(device: torch.device) -> torch.Tensor:
    return NOTHING.to(device)


def placed(table: torch.Tensor, device: torch.device) -> torch.Tensor:
    """The table on a device. NOTHING is there once, for as long as the process lives."""
    return _nothing_on(device) if table is NOTHING else table.to(device)


def is_nothing(table: torch.Tensor) -> bool:
    """Whether no kernel reads this table, which is on a device."""
    return table is _nothing_on(table.device)


_OF_GRAPHS: dict[int, torch.Tensor] = {}  # by address: what a captured launch reads


def keep_for_graphs(tables: Sequence[torch.Tensor]) -> None:
    """Keeps tables for as long as the process lives, if the launch that reads them is being captured.

    A graph holds their addresses, and nothing tells when it is gone. The launch, which owns them, may go earlier: a
    region keeps a limited number of kinds of calls ready.
    """
    if tables and capturing(tables[0].device):
        _OF_GRAPHS.update((table.data_ptr(), table) for table in tables)


def stream_of(device: torch.device) -> int:
    """The current stream of the device: what is made on it now is ready for what runs on it later. 0 on a CPU."""
    return torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0


@dataclass(frozen=True)
class WorkDistribution:
    """How a table distributes items [grid..., tiles of rows] over programs.

    It takes `few` grid points at a time, and `last` at the end. `listed` is the shape of the items' lists, 1 where one
    list serves a whole axis. An item costs `overhead` columns beside those of its list.
    """

    programs: int
    items: tuple[int, ...]
    listed: tuple[int, ...]
    few: int
    last: int
    overhead: int

    @property
    def apart(self) -> bool:
        """Whether each item has a program of its own."""
        return self.programs == prod(self.items)

    def in_turn(self, device: torch.device) -> torch.Tensor:
        """The table in which programs take the items in turn."""
        make = _in_turn.__wrapped__ if capturing(device) else _in_turn  # what a graph makes is there when it runs
        return make(prod(self.items), self.programs, device, stream_of(device))


@lru_cache(maxsize=64)
def _in_turn(total: int, programs: int, device: torch.device, stream: int) -> torch.Tensor:
    """int32 [1 + the most items of a program, programs]: the numbers of items in row 0, below it the items."""
    rounds = -(-total // programs)
    table = torch.arange(-programs, rounds * programs, dtype=torch.int32, device=device).view(1 + rounds, programs)
    table[0] = rounds
    table[0, total - (rounds - 1) * programs :] = rounds - 1
    return table


@dataclass(frozen=True)
class Tiling:
    """A block map with the sizes of a launch: the tile of rows (1 if the guard ignores them) and of the loop.

    together: how many tiles of rows share one list (`shared_visits`), 0 if each has its own. dealt: how the items that
    go through the lists are distributed over programs; None if each program takes the next ones in order.
    """

    record: BlockMap
    row_tile: int
    tile: int
    sizes: tuple[tuple[str, int], ...]
    together: int = 0
    dealt: WorkDistribution | None = None

    def __hash__(self) -> int:
        return self.number

    @cached_property
    def number(self) -> int:
        """The hash, computed once: each call looks up its map by it."""
        return hash((self.record, self.row_tile, self.tile, self.sizes, self.together, self.dealt))

    @cached_property
    def reads(self) -> tuple[str, ...]:
        """Names of the tensors that the guard reads."""
        return tuple(t.name for t in tensors(self.record.guard))

    def length(self, dim: Dim) -> int:
        """The dim's number of elements in this launch."""
        return resolve(dim.size, dict(self.sizes))

    def by_rows(self) -> Tiling | None:
        """The same with tiles of one row, for what each row keeps; None if the guard ignores the rows."""
        tile = min(MAX_TILE_OF_ONE_ROW, 1 << (self.length(self.record.loop) - 1).bit_length())
        return replace(self, row_tile=1, tile=tile, together=0, dealt=None) if self.record.rows else None

    def static(self, dim: Dim) -> Dim:
        """The dim with its number of elements as a static size."""
        return Dim(dim.name, self.length(dim))

    def blocks(self, dim: Dim, tile: int) -> Dim:
        """The dim that counts the tiles along a dim."""
        return Dim(f"{dim.name} block", -(-self.length(dim) // tile))

    def at(self, dim: Dim, tile: int, within: Term) -> Term:
        """The coordinate of an index within a block. Past the end the last coordinate is repeated: `any` and `all` over
        the block stay the same.
        """
        at = iota(self.blocks(dim, tile)) * const(tile) + within
        return at if self.length(dim) % tile == 0 else minimum(at, const(self.length(dim) - 1))

    def place(self, dim: Dim, tile: int) -> tuple[Term, Dim]:
        """The coordinate, and the dim of the indices within a block."""
        within = Dim(f"{dim.name} in block", tile)
        return self.at(dim, tile, iota(within)), within


def pays(kernel: Kernel, record: BlockMap, row_tile: int, tile: int, sizes: Mapping[str, int]) -> bool:
    """Whether making the map costs at most half of what the loop costs without it.

    The unit is a comparison of two ids for an element of a tile. Reading a mask element costs eight more; a product
    over 16 held elements costs one.
    """
    length = lambda dim: resolve(dim.size, sizes)
    rows = -(-length(kernel.rows) // row_tile) if kernel.rows is not None else 1
    dense = any(n.op == "load" and {kernel.rows, record.loop} <= n.dims for n in subterms(record.guard))
    map_cost = prod(map(length, record.dims)) * (9 if dense else 1) * (1 + record.finite_mask)
    loop_cost = prod(map(length, (*kernel.grid, *kernel.around))) * sum(length(d) for d in kernel.held) / 16
    return rows * -(-length(record.loop) // tile) >= MIN_TILES and 2 * map_cost <= loop_cost


@dataclass(frozen=True)
class _GuardInTiles:
    """The guard of a map over blocks (`order`) and over the indices within a block (`inside`)."""

    tiling: Tiling
    guard: Term
    order: tuple[Dim, ...]
    inside: tuple[Dim, ...]

    @classmethod
    def of(cls, tiling: Tiling) -> _GuardInTiles:
        record, tile = tiling.record, tiling.tile
        column, within = tiling.place(record.loop, tile)
        order, inside = [*map(tiling.static, record.dims)], [within]
        places = {iota(d): iota(tiling.static(d)) for d in record.dims} | {iota(record.loop): column}
        for rows in record.rows:
            places[iota(rows)], within_rows = tiling.place(rows, tiling.row_tile)
            order.append(tiling.blocks(rows, tiling.row_tile))
            inside.append(within_rows)
        guard = replaced(record.guard, places, dict(tiling.sizes))
        return cls(tiling, guard, (*order, tiling.blocks(record.loop, tile)), tuple(inside))

    def by_ends(self) -> TileDecision | None:
        """What the ends of what is compared tell, if all pairs tell the same, or are too many to look at.

        A map of a finite mask may not leave a tile undecided: a row of it counts that keeps nothing.
        """
        found, record = decided(self.guard, self.inside), self.tiling.record
        pairs = prod(map(self.tiling.length, (*record.dims, *record.rows, record.loop)))
        may_be_undecided = not record.finite_mask and pairs >= MIN_PAIRS_BY_ENDS
        return found if found is not None and (found.exact or may_be_undecided) else None


def elements_of_a_tile(tiling: Tiling) -> int:
    """How many elements the class of one tile looks at."""
    by_ends = _GuardInTiles.of(tiling).by_ends() is not None
    return 2 * max(tiling.row_tile, tiling.tile) if by_ends else tiling.row_tile * tiling.tile


def class_store(tiling: Tiling) -> Store:
    """The store of EMPTY, PARTIAL or FULL for [dims..., row blocks, loop blocks].

    It goes by the ends of what is compared, or counts the kept elements. By ends of several comparisons, a tile may be
    PARTIAL that keeps nothing, or all. A short last tile of the loop is never full, so that full tiles need no mask.
    """
    found, tile, length = _GuardInTiles.of(tiling), tiling.tile, tiling.length(tiling.record.loop)
    one = lambda n: cast(const(n), "int32")
    if (ends := found.by_ends()) is not None:
        whole, some = ends.all_kept, cast(ends.some_kept, "int32")
    else:
        kept = cast(found.guard, "int32")
        for dim in found.inside:
            kept = reduce("sum", dim, kept)
        whole, some = eq(kept, one(prod(d.size for d in found.inside))), minimum(kept, one(PARTIAL))
    if length % tile:
        whole = logical_and(whole, le((iota(found.order[-1]) + 1) * const(tile), const(length)))
    output = Tensor("classes of tiles", "int32", tuple(d.size for d in found.order))
    return Store(where(whole, one(FULL), some), output, found.order)


def replaced(guard: Term, places: Mapping[Term, Term], sizes: Mapping[str, int]) -> Term:
    """The guard at other coordinates, with numbers for its sizes."""

    def change(node: Term, args: tuple[Term, ...]) -> Term:
        if node.op == "size":
            return const(resolve(node.attrs[0], sizes))
        return places.get(node) or (node if args == node.args else make(node.op, args, node.attrs))

    return at_nearest_places(rebuild(guard, change))


def where_rows_keep(classes: torch.Tensor, by_rows: torch.Tensor, tiling: Tiling) -> torch.Tensor:
    """The classes [..., (row tiles,) n] of a finite mask, corrected by the classes [..., (rows,) m] of single rows.

    If one row of a tile keeps nothing, all its elements count, so no tile of these rows is empty.
    """
    kept = (by_rows != EMPTY).any(-1)
    if tiling.record.rows:
        missing = -kept.shape[-1] % tiling.row_tile
        kept = torch.nn.functional.pad(kept, (0, missing), value=True).unflatten(-1, (-1, tiling.row_tile)).all(-1)
    return torch.where(kept.unsqueeze(-1), classes, classes.clamp(min=PARTIAL))


def shared_visits(classes: torch.Tensor, together: int) -> torch.Tensor:
    """Classes [..., rows, n] as int32 [..., rows / together, 1 + 2 · together + n]: one list for several tiles of rows.

    A list has the number of tiles first; then, for each tile of rows, where in the list its own tiles begin and end (at
    least one); then the tiles in rising order, each as 2^together · its number + the sum of 2^w over the tiles of rows
    w for which it is not full.
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


class _NamedCall(local):
    named: tuple[Sequence[torch.Tensor], str] | None = None


CALL = _NamedCall()  # `named`: the tensors of the call that this thread runs, and what they are of its graph


class NamedTensors:
    """A context in which the tensors of a call have names, for `sources_of`. It is a class because each call enters it,
    and a generator would take the host longer."""

    __slots__ = ("before", "named")

    def __init__(self, tensors: Sequence[torch.Tensor], names: str):
        self.named = (tensors, names) if names else None

    def __enter__(self) -> None:
        self.before, CALL.named = CALL.named, self.named

    def __exit__(self, *raised: object) -> None:
        CALL.named = self.before


Found = tuple[torch.Tensor, ...]
Build = Callable[[Tiling, Mapping[str, torch.Tensor]], Found]


def version_of(tensor: torch.Tensor) -> tuple | None:
    """What changes when a tensor is written, moved, or made another view; None if it has no version counter."""
    if tensor.is_inference():
        return None
    memory = tensor.untyped_storage()._cdata, tensor.data_ptr()
    return tensor._version, *memory, tensor.shape, tensor.stride(), tensor.dtype


def sources_of(tensors: Iterable[torch.Tensor], names: str) -> dict[int, tuple[str, ...]]:
    """By memory, what the tensors of a call are; names: of each, in order, or "" where a graph says none.

    By memory, since what runs may read some of the tensors, views of them, or first what else it is given.
    """
    found: dict[int, tuple[str, ...]] = {}
    for tensor, name in zip(tensors, names.split(",")) if names else ():
        memory = tensor.untyped_storage()._cdata
        found[memory] = (*found.get(memory, ()), name)
    return found


def owner_of(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor that owns the data: a view shares memory and version counter with its base."""
    return tensor if tensor.is_inference() or tensor._base is None else tensor._base


class MapCache:
    """Visit lists by tiling and by the tensors that they were read from.

    A tensor is unchanged if it is the same object, or the same view of one, and its version counter is the same. Writes
    that torch does not count (to `x.data`, through NumPy, or by a pointer) are not seen. A tensor made under
    inference_mode has no counter and is read each time. So is a parameter: FSDP frees its memory and fills it again
    behind the counter's back. A compiler that reuses the memory of one value for another does
    not count that either: if a call names its tensors' sources, only the same source is unchanged. At most MAX_MAPS
    maps are kept, and none of a tensor that is gone. A map that is wanted a second time may be worth more work: `again`
    makes it from what was built, once.
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
        states, owners = tuple(map(version_of, read)), [*map(owner_of, read)]
        device = read[0].device
        unseen = None in states or any(isinstance(owner, torch.nn.Parameter) for owner in owners)
        if unseen or capturing(device):  # a replayed graph must read the mask again
            return build(tiling, values)
        named = sources_of(*CALL.named) if CALL.named else {}
        sources = [named.get(tensor.untyped_storage()._cdata) for tensor in read]
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
        """What is kept for these tensors if they are unchanged, and whether `again` has nothing more to do."""
        references, _, seen, found, last = self._kept.get(key, ((), (), None, None, False))
        if seen != versions or any(ref() is not t for ref, t in zip(references, owners, strict=True)):
            return None, False
        self._kept.move_to_end(key)
        return found, last

    def _forget(self) -> None:
        """Drops maps of tensors that are gone, and the oldest maps of too many.

        A weak reference to memory keeps its address from being used again: after `x.data` is replaced, no other tensor
        gets the old address.
        """
        gone = lambda owners, memory: any(t() is None for t in owners) or any(m.expired() for m in memory)
        for key in [k for k, (owners, memory, *_) in self._kept.items() if gone(owners, memory)]:
            del self._kept[key]
        while len(self._kept) > MAX_MAPS:
            self._kept.popitem(last=False)

"""Which tiles a loop runs, written as scalar lines of Triton before it, inside of what runs around it: the arithmetic
of lowering/masks/loop_ranges.py, line by line.

One range of rising limits becomes up to three runs of neighbours (partial, full, partial); a union of ranges two lists
of pieces, partial and full, that do not overlap.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import pairwise

from ...egraph.terms.ops import iota, make
from ...egraph.terms.traversal import substitute, subterms
from ..codegen.ops import TileValue, atom
from ..codegen.tile_writer import TileWriter
from ..plan.records import BlockMap, Limit, Loop, Range

MIN_TILES_OF_AN_UNEVEN_PART = 4

Piece = tuple[str, str]  # names of scalars: from this tile number to before that one


@dataclass(frozen=True)
class Segment:
    """A run of a loop's tiles of one class: guarded ones test the guard, ragged ones the end of the dim.

    The loop's variable runs over low .. high by step; `start` says the tile's first coordinate by it ("" is itself),
    `following` is a line that prepares the next round. single: there is at most one tile. once: there is exactly one.
    """

    low: str
    high: str
    step: str
    guarded: bool
    ragged: bool
    start: str = ""
    following: str = ""
    single: bool = False
    once: bool = False


def by_columns(segments: Sequence[Segment], block: str) -> list[Segment]:
    """The same tiles column by column, and in fewer loops. block: the extent of the tiles."""
    one_by_one = lambda s: replace(s, step="1", single=False, once=False) if not s.start else _counted_columns(s, block)
    return [one_by_one(s) for s in joined(segments)]


def _counted_columns(segment: Segment, block: str) -> Segment:
    low, high = (f"{atom(end)} * {block}" for end in (segment.low, segment.high))
    start = segment.start.replace("{n}", f"({{n}} // {block})") + f" + {{n}} % {block}"
    return replace(segment, low=low, high=high, start=start, once=False)


def joined(segments: Sequence[Segment]) -> list[Segment]:
    """Neighbours of one kind of count become one that tests as much as either."""
    found: list[Segment] = []
    for one in segments:
        last = found[-1] if found else None
        if last and (last.high, last.step, last.start, last.following) == (one.low, one.step, one.start, one.following):
            guarded, ragged = last.guarded or one.guarded, last.ragged or one.ragged
            found[-1] = replace(last, high=one.high, guarded=guarded, ragged=ragged, single=False, once=False)
        else:
            found.append(one)
    return found


def _nested(function: str, texts: Sequence[str]) -> str:
    """A function of two numbers, of several."""
    return reduce(lambda before, text: f"{function}({before}, {text})", texts)


class RangeWriter:
    """Writes the bounds of one loop of a kernel into the outer scope."""

    def __init__(self, tiles: TileWriter, loop: Loop):
        self.tiles, self.loop = tiles, loop
        self.dim, self.size, self.block = loop.dim, tiles.sizes[loop.dim], tiles.tile_of(loop.dim)
        self.ragged = str(loop.dim) not in tiles.facts.even
        self.scope = tiles.middle if loop.outer else tiles.outer

    def segments(self, one_body: bool = False) -> list[Segment]:
        """The loop's tiles by class; empty tiles are in no segment, classes that cannot occur have none.

        one_body: the tiles of one range are one segment, where each tile makes every test that one of them needs.
        """
        if self.loop.map in self.tiles.maps:
            return self._mapped(self.loop.map)
        if len(self.loop.ranges) == 1:
            return self._neighbours(self.loop.ranges[0], one_body)
        return self._listed() if self.loop.ranges else []

    def reached(self) -> TileValue | None:
        """Those of a tile's elements from the first to the last that some limits keep for some row; None without any.
        """
        every, at, parts = self.loop.ranges, self.tiles.coordinate(self.dim).text, []
        if every and all(found.lowers for found in every):
            first = [self._lowest(found.lowers, "0", strict=False) for found in every]
            parts.append(f"({at} >= {self._scalar('first', _nested('tl.minimum', first))})")
        if every and all(found.uppers for found in every):
            limit = [self._highest(found.uppers, strict=False) for found in every]
            parts.append(f"({at} < {self._scalar('limit', _nested('tl.maximum', limit))})")
        return TileValue(" & ".join(parts), (self.dim,), "bool") if parts else None

    # Limits

    def _scalar(self, hint: str, text: str) -> str:
        return self.tiles.assign(f"{self.dim}_{hint}", TileValue(text), self.scope).text

    def _limit(self, limit: Limit, upper: bool, strict: bool) -> str:
        """The limit for all rows of the tile: its loosest value, or (strict) its tightest."""
        bound, rows = limit.bound, self.tiles.kernel.rows
        if rows is not None and rows in bound.dims:
            name = self._end_row(last=limit.rising == (upper != strict))
            bound = substitute(bound, {iota(rows): make("var", (), (name, "int64"))})
        text = self.tiles.value(bound).text
        return f"tl.cast({text}, tl.int32)" if any(n.op == "load" for n in subterms(bound)) else text

    def _end_row(self, last: bool) -> str:
        tiles, rows = self.tiles, self.tiles.kernel.rows
        start, block, size = tiles.starts[rows], tiles.blocks[rows], tiles.sizes[rows]
        if not last:
            text = start
        elif str(rows) in tiles.facts.even:
            text = f"{start} + {block} - 1"
        else:
            text = f"tl.minimum({start} + {block}, {size}) - 1"
        build = lambda: TileValue(text) if not last else tiles.assign(f"{rows}_last", TileValue(text), tiles.outer)
        name = tiles.once(("end row", last), (), build).text
        tiles.scalars[name] = name
        return name

    def _lowest(self, limits: tuple[Limit, ...], first: str, strict: bool) -> str:
        for limit in limits:
            first = f"tl.maximum({first}, {self._limit(limit, upper=False, strict=strict)})"
        return first

    def _highest(self, limits: tuple[Limit, ...], strict: bool, text: str = "") -> str:
        text = text or self.size
        for limit in limits:
            text = f"tl.minimum({text}, {self._limit(limit, upper=True, strict=strict)})"
        return text

    # One range: the loop's variable is the coordinate

    def _neighbours(self, found: Range, one_body: bool) -> list[Segment]:
        begin, end, block = "0", self.size, self.block
        if self._is_one_tile(found):
            guarded = self.loop.guard is not None and (one_body or not found.exact)
            return [Segment(begin, end, block, guarded, self.ragged, single=True, once=True)]
        if found.lowers:
            begin = self._scalar("begin", f"{self._lowest(found.lowers, '0', strict=False)} // {block} * {block}")
        if found.uppers:
            end = self._scalar("end", self._highest(found.uppers, strict=False))
        begin, end = self._share(begin, end, block)
        if one_body:
            return [Segment(begin, end, block, self.loop.guard is not None, self.ragged)]
        if self.loop.guard is not None and not found.exact:
            if not self.ragged:
                return [Segment(begin, end, block, True, False)]
            whole = self._scalar("whole", f"tl.maximum({end} // {block} * {block}, {begin})")
            return [Segment(begin, whole, block, True, False), Segment(whole, end, block, True, True, single=True)]
        return self._split(found, begin, end)

    def _is_one_tile(self, found: Range) -> bool:
        """Whether all of the loop is one tile, whatever the program: it needs no loop then, and no second body."""
        facts = self.tiles.facts
        limited = bool(found.lowers or found.uppers) or self.loop.part is not None or facts.piece
        return str(self.dim) in facts.short and not limited

    def _split(self, found: Range, begin: str, end: str) -> list[Segment]:
        """Partial tiles before, full tiles, partial tiles after."""
        block, ragged = self.block, self.ragged
        full_begin, full_end, segments = begin, end, []
        if found.lowers:
            text = self._lowest(found.lowers, begin, strict=True)
            full_begin = self._scalar("full_begin", f"tl.cdiv({text}, {block}) * {block}")
            before = self._scalar("before", f"tl.minimum({full_begin}, {end})")
            segments.append(Segment(begin, before, block, True, ragged))
        if found.uppers or ragged:
            text = self._highest(found.uppers, strict=True, text=end if self.loop.part else "")
            text = f"tl.maximum({text}, {full_begin})" if found.uppers or found.lowers or self.loop.part else text
            full_end = self._scalar("full_end", f"{atom(text)} // {block} * {block}")
        segments.append(Segment(full_begin, full_end, block, False, False))
        if found.uppers or ragged:
            single = not found.uppers  # what is left behind the last full tile
            segments.append(Segment(full_end, end, block, not single, ragged, single=single))
        return segments

    def _share(self, begin: str, end: str, step: str) -> Piece:
        """What of begin .. end, in steps, the program's part of the loop runs; all of it where there are no parts."""
        part = self.loop.part
        if part is None:
            return begin, end
        if self.tiles.facts.piece:
            return self._piece_of(begin, end, step)
        count = end if begin == "0" else f"tl.maximum({end} - {begin}, 0)"
        count = count if step == "1" else f"tl.cdiv({count}, {step})"
        share = f"tl.cdiv({count}, {self.tiles.sizes[part]})"
        if self.loop.length_is_data:  # a short one has few parts, and the other programs end at once
            share = f"tl.maximum({share}, {MIN_TILES_OF_AN_UNEVEN_PART})"
        share = self._scalar("share", share if step == "1" else f"{share} * {step}")
        begin = self._scalar("begin", ("" if begin == "0" else f"{begin} + ") + f"{self.tiles.starts[part]} * {share}")
        return begin, self._scalar("end", f"tl.maximum(tl.minimum({end}, {begin} + {share}), {begin})")

    def _piece_of(self, begin: str, end: str, step: str) -> Piece:
        """What of begin .. end is in the program's piece, which is counted from 0. step: of begin and end, or "1" where
        they are numbers of tiles."""
        length = str(self.tiles.facts.piece) if step != "1" else f"({self.tiles.facts.piece} // {self.block})"
        first = self._scalar("piece", f"{self.tiles.starts[self.loop.part]} * {length}")
        begin = self._scalar("begin", first if begin == "0" else f"tl.maximum({begin}, {first})")
        return begin, self._scalar("end", f"tl.maximum(tl.minimum({end}, {first} + {length}), {begin})")

    # Several ranges: the loop's variable counts through pieces, in numbers of tiles

    def _listed(self) -> list[Segment]:
        pieces = [self._piece(r) for r in self.loop.ranges]
        visited = self._disjoint([run for run, _ in pieces])
        if self.tiles.facts.piece:  # by rising number, whatever their classes are
            visited = [self._piece_of(*run, "1") for run in visited] if self.loop.part else visited
            return [self._counted("partial", visited, True)]
        full = self._disjoint([full for _, full in pieces if full is not None])
        segments = [self._counted("partial", self._outside(visited, full), True)]
        return segments + ([self._counted("full", full, False)] if full else [])

    def _piece(self, found: Range) -> tuple[Piece, Piece | None]:
        """The tiles that a range needs, and those of them that are full: tile_range of masks/loop_ranges.py."""
        block = self.block
        stop = self._scalar("stop", f"tl.cdiv(tl.maximum({self._highest(found.uppers, strict=False)}, 0), {block})")
        start = self._scalar("start", f"tl.minimum({self._lowest(found.lowers, '0', strict=False)} // {block}, {stop})")
        if not found.exact:
            return (start, stop), None
        highest = self._highest(found.uppers, strict=True)
        full_stop = self._scalar("full_stop", f"tl.maximum({highest}, 0) // {block}")
        lowest = self._lowest(found.lowers, "0", strict=True)
        full_start = self._scalar("full_start", f"tl.minimum(tl.cdiv({lowest}, {block}), {full_stop})")
        return (start, stop), (full_start, full_stop)

    def _disjoint(self, pieces: list[Piece]) -> list[Piece]:
        """The same tiles in pieces by rising number that do not overlap."""
        pieces = list(pieces)
        for last in range(len(pieces) - 1, 0, -1):
            for k in range(last):
                pieces[k], pieces[k + 1] = self._exchanged(pieces[k], pieces[k + 1])
        reach, found = None, []
        for low, high in pieces:
            low = low if reach is None else self._scalar("low", f"tl.maximum({low}, {reach})")
            reach = high if reach is None else self._scalar("high", f"tl.maximum({high}, {low})")
            found.append((low, reach))
        return found

    def _exchanged(self, one: Piece, other: Piece) -> tuple[Piece, Piece]:
        swap = self._scalar("swap", f"{one[0]} > {other[0]}")
        choose = lambda a, b: self._scalar("bound", f"tl.where({swap}, {b}, {a})")
        lower = choose(one[0], other[0]), choose(one[1], other[1])
        return lower, (choose(other[0], one[0]), choose(other[1], one[1]))

    def _outside(self, visited: list[Piece], full: list[Piece]) -> list[Piece]:
        """What is left of the visited tiles between the full ones."""
        if not full:
            return visited
        gaps = [("0", full[0][0]), *((a[1], b[0]) for a, b in pairwise(full)), (full[-1][1], None)]
        found = []
        for low, high in visited:
            for gap_low, gap_high in gaps:
                first = self._scalar("low", f"tl.maximum({low}, {gap_low})")
                last = high if gap_high is None else f"tl.minimum({high}, {gap_high})"
                found.append((first, self._scalar("high", f"tl.maximum({last}, {first})")))
        return found

    def _counted(self, name: str, pieces: list[Piece], guarded: bool) -> Segment:
        """One run over the tiles of all pieces: number n of the run is tile n + shift of its piece."""
        count, shift = "0", pieces[0][0]
        for position, (low, high) in enumerate(pieces):
            if position:
                moved = self._scalar("shift", f"{low} - {count}")
                shift = f"tl.where({{n}} >= {count}, {moved}, {shift})"
            count = self._scalar(f"{name}_count", f"{count} + {high} - {low}" if position else f"{high} - {low}")
        low, high = ("0", count) if self.tiles.facts.piece else self._share("0", count, "1")
        return Segment(low, high, "1", guarded, guarded and self.ragged, f"({{n}} + {shift}) * {self.block}")

    # A block map: the loop's variable counts through its list

    def _mapped(self, record: BlockMap) -> list[Segment]:
        """The list of this tile of rows: how many are partial, how many in all, then their numbers;
        lowering/masks/block_map.py.

        Each number is read one round ahead, so that the loads of a tile never wait for it.
        """
        tiles, place = self.tiles, "0"
        for dim in record.dims:
            place = f"({place} * {tiles.sizes[dim]} + {tiles.starts[dim]})" if place != "0" else tiles.starts[dim]
        for rows in record.rows:
            at = f"{tiles.starts[rows]} // {tiles.blocks[rows]}"
            count = f"tl.cdiv({tiles.sizes[rows]}, {tiles.blocks[rows]})"
            place = f"{place} * {count} + {at}" if record.dims else at
        width = f"(tl.cdiv({self.size}, {self.block}) + 3)"
        visits = self._scalar("visits", f"{tiles.maps[record]} + tl.cast({place}, tl.int64) * {width}")
        partial, every = self._scalar("partial", f"tl.load({visits})"), self._scalar("every", f"tl.load({visits} + 1)")
        number = self._scalar("number", f"tl.load({visits} + 2)")
        start, following = f"{number} * {self.block}", f"{number} = tl.load({visits} + 3 + {{n}})"
        return [
            Segment("0", partial, "1", True, self.ragged, start, following),
            Segment(partial, every, "1", False, False, start, following),
        ]

"""The text that finds the work items of a Hopper kernel, and the tiles of the loop that each item runs.

An item is one tile of rows at one grid point. Invariant: the producer and the consumers of a program go through the
same tiles in the same order. The tiles are a range if the loop has limits, and a list in memory if it has a block map.
Example: under a causal mask a range is run from its end, so that the masked tiles come first.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import gcd

from ...egraph.terms.ops import iota, make
from ...egraph.terms.term import Dim, Term
from ...egraph.terms.traversal import substitute, subterms
from ..codegen.fast_division import Divisor
from ..codegen.ops import TileValue
from ..hopper.config import WarpSettings
from ..hopper.kernel_form import WarpBinding
from ..masks.loop_ranges import end_of_rows
from ..masks.mask_bits import WORD
from ..plan.device import H200
from ..plan.records import BlockMap, Limit
from .expressions import GluonWriter


@dataclass(frozen=True)
class Walk:
    """The tiles of the loop that the producer, or one consumer, runs for an item. All fields are texts.

    count: how many tiles. find: lines that set `tile` to the number of the {t}-th tile. partial: whether that tile
    needs the guard. before, after: how many tiles of the whole program come before and after those of this consumer.
    occupied: whether the range has tiles; "" where it does. One without runs a tile that counts for nothing. low, high:
    where the first and the last copy of the range begin, if a tile takes several copies; else "".
    """

    count: str
    find: tuple[str, ...]
    partial: str = ""
    before: str = ""
    after: str = ""
    occupied: str = ""
    low: str = ""
    high: str = ""

    def at(self, t: str) -> list[str]:
        return [line.format(t=t) for line in self.find]


class WalkWriter:
    """Writes the search for items and tiles into a function.

    listed: the dims for which there is a list of tiles each; None if the tiles are ranges. in_pieces: tiles are read in
    their order.
    """

    def __init__(
        self,
        binding: WarpBinding,
        config: WarpSettings,
        sizes: dict[Dim, str],
        listed: tuple[Dim, ...] | None,
        fresh,
        in_pieces: bool = False,
    ):
        self.in_pieces = in_pieces
        self.kernel, self.loop, self.config = binding.kernel, binding.loop, config
        self.sizes, self.listed, self.block = sizes, listed, H200.product_rows * config.consumers
        self.occupied = self.reached = ""  # of the range that was written last: in its part, and as a whole
        self.by_pages = any(operand.pages for operand in binding.streams)
        # columns that one copy brings
        self.copied = gcd(config.loop_tile, *(page for operand in binding.streams for page in operand.pages))
        first, *inner = self.kernel.grid or (None,)
        steps = {self.kernel.rows: self.block} | dict.fromkeys(reversed(inner), 1) if first else {}
        part = lambda dim, name: fresh(f"{dim}_{name}")
        self.divisors = [Divisor(d, n, part(d, "multiplier"), part(d, "shift")) for d, n in steps.items()]

    def item(self, writer: GluonWriter, item: str) -> str:
        """Writes the coordinates of an item, and returns the name of its first row."""
        lines, fresh, kernel = writer.outer.lines, writer.names.fresh, self.kernel
        rest, places = item, {}
        for divisor in self.divisors:
            dim, whole = divisor.dim, fresh("item")
            places[dim] = fresh(str(dim))
            count = self.sizes[dim] if divisor.step == 1 else f"gl.cdiv({self.sizes[dim]}, {divisor.step})"
            lines += [f"{whole} = {divisor.quotient(rest)}", f"{places[dim]} = {rest} - {whole} * {count}"]
            rest = whole
        first = fresh("first_row")
        lines.append(f"{first} = {places.pop(kernel.rows, rest)} * {self.block}")
        writer.starts |= places | dict.fromkeys(kernel.grid[:1], rest)
        return first

    def of_program(self, writer: GluonWriter, first: str) -> Walk:
        """The tiles that the producer copies for an item. There is at least one, so that every state is initialised."""
        if self.listed is not None:
            return self._listed(writer, first)
        walk = replace(self._tiles(*self.range_of_program(writer, first)), occupied=self.reached)
        return walk if self.copied == self.config.loop_tile else self._within(writer, walk, first)

    def _within(self, writer: GluonWriter, walk: Walk, first: str) -> Walk:
        """The walk with the first and the last place of its range where a copy may begin.

        A tile may reach beyond the range, where a page may be anything.
        """
        lowest, highest = self._limits(writer, "block", first, self.block, False)
        step = self.copied
        place = lambda hint, text: writer.assign(hint, TileValue(f"{text} // {step} * {step}"), writer.outer)
        low, high = place("first_copy", lowest), place("last_copy", f"gl.maximum({highest} - 1, 0)")
        return replace(walk, low=low.text, high=high.text)

    def of_rows(self, writer: GluonWriter, first: str, row: str, skewed: bool, some: bool, vacant: bool) -> Walk:
        """The tiles that one warpgroup runs for its rows.

        skewed: they may be fewer than those of the program. some: whether a tile needs the guard is tested at run time.
        vacant: the warpgroup may have no rows; it then runs one tile.
        """
        if self.listed is not None:
            return self._own(writer, first)
        begin, end = self.range_of_program(writer, first)
        occupied = self.occupied
        exists = f"{row} < {self.sizes[self.kernel.rows]}"
        if vacant and not skewed:
            own = writer.assign("own_begin", TileValue(f"gl.where({exists}, {begin}, {end} - 1)"), writer.outer).text
            walk = self._tiles(own, end, "", "", f"{own} - {begin}")
        else:
            walk = replace(self._tiles(begin, end), occupied=occupied)
        if not skewed and not some:
            return walk
        low, high, full_begin, full_end = self.ends(writer, "own", row, H200.product_rows)
        partial = f"(tile < {full_begin}) | (tile >= {full_end})"
        if not skewed:
            return replace(walk, partial=partial)
        writer.outer.lines += [
            f"{low} = gl.minimum(gl.maximum({low}, {begin}), {end} - 1)",
            f"{high} = gl.minimum(gl.maximum({high}, {low} + 1), {end})",
            *([f"{low} = gl.where({exists}, {low}, {high} - 1)"] if vacant else []),
        ]
        return self._tiles(low, high, partial, f"{end} - {high}", f"{low} - {begin}")

    def _tiles(self, begin: str, end: str, partial: str = "", last: str = "", first: str = "") -> Walk:
        """The tiles of a range. last, first: how many of the program's tiles lie behind it and in front of it.

        Under a causal mask, those that need the guard come first, from the range's end. In pieces, tiles are read in
        their order.
        """
        if self.in_pieces:
            return Walk(f"{end} - {begin}", (f"tile = {begin} + {{t}}",), partial, first, last)
        return Walk(f"{end} - {begin}", (f"tile = {end} - 1 - {{t}}",), partial, last, first)

    # Lists

    def _listed(self, writer: GluonWriter, first: str) -> Walk:
        """All tiles of an item's list, which `shared_visits` in lowering/masks lays out."""
        mine, every = self.list_of_program(writer, first)
        return Walk(every, self.entry(mine, "{t}"))

    def _own(self, writer: GluonWriter, first: str) -> Walk:
        """The part of an item's list that one warpgroup runs."""
        mine, every = self.list_of_program(writer, first)
        load = lambda place: TileValue(f"gl.load({mine} + {place} + 2 * W)")
        begin = writer.assign("own_begin", load(1), writer.outer).text
        end = writer.assign("own_end", load(2), writer.outer).text
        return Walk(
            f"{end} - {begin}", self.entry(mine, f"{begin} + {{t}}"), "entry >> W & 1 != 0", begin, f"{every} - {end}"
        )

    def entry(self, mine: str, place: str) -> tuple[str, ...]:
        """Lines that read a tile's number, and for each warpgroup whether it needs the guard, from a list."""
        consumers = self.config.consumers
        return f"entry = gl.load({mine} + {1 + 2 * consumers} + {place})", f"tile = entry >> {consumers}"

    def list_of_program(self, writer: GluonWriter, first: str) -> tuple[str, str]:
        """The names of the pointer to this item's list, and of the number of its tiles."""
        place = "0"
        for dim in self.listed:
            of_rows = dim == self.kernel.rows
            count = f"gl.cdiv({self.sizes[dim]}, {self.block})" if of_rows else self.sizes[dim]
            place = f"({place} * {count} + {f'{first} // {self.block}' if of_rows else writer.starts[dim]})"
        width = f"(gl.cdiv({self.sizes[self.loop.dim]}, {self.config.loop_tile}) + {1 + 2 * self.config.consumers})"
        assign = lambda hint, text: writer.assign(hint, TileValue(text), writer.outer).text
        mine = assign("list_here", f"visits + gl.cast({place}, gl.int64) * {width}")
        return mine, assign("every", f"gl.load({mine})")

    def words(self, writer: GluonWriter, row: str, record: BlockMap) -> str:
        """The name of the pointer to a warpgroup's mask words. A warpgroup without rows reads the last tile's words."""
        count = lambda dim, tile: f"gl.cdiv({self.sizes[dim]}, {tile})"
        (rows,), place = record.rows, "0"
        for dim in record.dims:
            place = f"({place} * {self.sizes[dim]} + {writer.starts[dim]})"
        blocks, block_rows = count(rows, H200.product_rows), H200.product_rows
        place = f"({place} * {blocks} + gl.minimum({row} // {block_rows}, {blocks} - 1))"
        step = f"{count(self.loop.dim, self.config.loop_tile)} * {self.config.loop_tile * H200.product_rows // WORD}"
        first = TileValue(f"words + gl.cast({place}, gl.int64) * ({step})")
        return writer.assign("words_here", first, writer.outer).text

    # Ranges

    def range_of_program(self, writer: GluonWriter, first: str) -> tuple[str, str]:
        """Names of the first tile that a program runs, and of the one after its last; it runs at least one."""
        begin, end, _, _ = self.ends(writer, "block", first, self.block)
        if self.by_pages and self.loop.limits:
            self.reached = writer.assign("reached", TileValue(f"{begin} < {end}"), writer.outer).text
        count = f"gl.cdiv({self.sizes[self.loop.dim]}, {self.config.loop_tile})"
        writer.outer.lines += [
            f"{begin} = gl.minimum({begin}, {count} - 1)",
            f"{end} = gl.minimum(gl.maximum({end}, {begin} + 1), {count})",
        ]
        return self._part(writer, begin, end) if self.loop.part is not None else (begin, end)

    def _part(self, writer: GluonWriter, begin: str, end: str) -> tuple[str, str]:
        """Names of the first tile and of the one after the last, of the part of a range that this grid point runs.

        A part without a tile runs one of another part, and counts nothing of it: `occupied` is false then.
        """
        assign = lambda hint, text: writer.assign(hint, TileValue(text), writer.outer).text
        number, parts, count = writer.starts[self.loop.part], self.sizes[self.loop.part], f"({end} - {begin})"
        low = assign("part_begin", f"{begin} + {count} * {number} // {parts}")
        high = assign("part_end", f"{begin} + {count} * ({number} + 1) // {parts}")
        self.occupied = assign("occupied", f"{high} > {low}")
        return low, assign("part_end", f"gl.maximum({high}, {low} + 1)")

    def ends(self, writer: GluonWriter, hint: str, first: str, height: int) -> tuple[str, str, str, str]:
        """Names of a range's limits, in tiles: its begin and end, and begin and end of the tiles that need no guard.

        The range is that of `height` rows, from the row `first` on.
        """
        tile = self.config.loop_tile
        (low, high), (full_low, full_high) = (self._limits(writer, hint, first, height, full) for full in (False, True))
        texts = {
            "begin": f"{low} // {tile}",
            "full_begin": f"gl.cdiv({full_low}, {tile})",
            "end": f"gl.cdiv(gl.maximum({high}, 0), {tile})",
            "full_end": f"gl.maximum({full_high}, 0) // {tile}",
        }
        found = {n: writer.assign(f"{hint}_{n}", TileValue(text), writer.outer).text for n, text in texts.items()}
        return found["begin"], found["end"], found["full_begin"], found["full_end"]

    def _limits(self, writer: GluonWriter, hint: str, first: str, height: int, full: bool) -> tuple[str, str]:
        """Where a range of `height` rows begins and ends. full: where all rows keep every place."""
        rows = self.kernel.rows
        ends = [] if full else [end_of_rows(x, rows, self.loop.dim) for x in self.loop.uppers if rows in x.bound.dims]
        ends_here = [self.sizes[rows], *(self._scalar(writer, end) for end in ends if end is not None)]
        text = f"gl.maximum({_nest('gl.minimum', f'{first} + {height}', ends_here)} - 1, {first})"
        build = lambda: writer.assign(f"{hint}_last_row", TileValue(text), writer.outer)
        last = writer.once(("last row", text), (), build).text
        at = lambda limit, upper: self._bound(writer, limit, last if limit.rising == (upper != full) else first)
        low = _nest("gl.maximum", "0", [at(limit, False) for limit in self.loop.lowers])
        return low, _nest("gl.minimum", self.sizes[self.loop.dim], [at(limit, True) for limit in self.loop.uppers])

    def _bound(self, writer: GluonWriter, limit: Limit, row: str) -> str:
        rows, bound = self.kernel.rows, limit.bound
        if rows in bound.dims:
            writer.scalars[row] = row
            bound = substitute(bound, {iota(rows): make("var", (), (row, "int64"))})
        return self._scalar(writer, bound)

    @staticmethod
    def _scalar(writer: GluonWriter, term: Term) -> str:
        """A number of columns or rows, in 32 bits."""
        text = writer.value(term).text
        return f"gl.cast({text}, gl.int32)" if reads_a_tensor(term) else text


def reads_a_tensor(term: Term) -> bool:
    """Whether a term reads a tensor."""
    return any(n.op == "load" for n in subterms(term))


def _nest(function: str, start: str, texts: list[str]) -> str:
    for text in texts:
        start = f"{function}({start}, {text})"
    return start

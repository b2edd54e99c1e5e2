"""Work items of a Hopper kernel: which tile of rows at which grid point, and which tiles of the loop in which order.

The producer and the consumers of a program go through the same tiles: down a range that limits give, or along a list in
memory (lowering/masks/block_map.py), which names the tiles that hold anything and says for whom they are full.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ...egraph.terms.ops import iota, make
from ...egraph.terms.term import Dim, Term
from ...egraph.terms.traversal import substitute, subterms
from ..codegen.fast_division import Divisor
from ..codegen.ops import TileValue
from ..hopper.config import HopperConfig
from ..hopper.kernel_form import Binding
from ..masks.mask_bits import WORD
from ..plan.device import H200
from ..plan.records import BlockMap, Limit
from .expressions import GluonWriter


@dataclass(frozen=True)
class Walk:
    """An item's tiles for one function: `count` of them, lines that find the {t}-th's number `tile`, and when that one
    needs the guard. before, after: how many tiles of the program come earlier and later that are not its own.
    """

    count: str
    find: tuple[str, ...]
    partial: str = ""
    before: str = ""
    after: str = ""

    def at(self, t: str) -> list[str]:
        return [line.format(t=t) for line in self.find]


class WalkWriter:
    """Writes items and their tiles into a function; `listed` are the dims that the lists are over, None for ranges."""

    def __init__(
        self, binding: Binding, config: HopperConfig, sizes: dict[Dim, str], listed: tuple[Dim, ...] | None, fresh
    ):
        self.kernel, self.loop, self.config = binding.kernel, binding.loop, config
        self.sizes, self.listed, self.block = sizes, listed, H200.product_rows * config.consumers
        first, *inner = self.kernel.grid or (None,)
        steps = {self.kernel.rows: self.block} | dict.fromkeys(reversed(inner), 1) if first else {}
        part = lambda dim, name: fresh(f"{dim}_{name}")
        self.divisors = [Divisor(d, n, part(d, "multiplier"), part(d, "shift")) for d, n in steps.items()]

    def item(self, writer: GluonWriter, item: str) -> str:
        """Writes an item's coordinates; the name of its first row."""
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
        """The tiles that the producer copies for an item: at least one, so that every state begins."""
        return self._listed(writer, first) if self.listed is not None else self._down(*self._range(writer, first))

    def of_rows(self, writer: GluonWriter, first: str, row: str, skewed: bool, some: bool, vacant: bool) -> Walk:
        """The tiles of one warpgroup's rows. skewed: they may be fewer; some: it depends which need the guard; vacant:
        there may be no such rows, which makes it one tile.
        """
        if self.listed is not None:
            return self._own(writer, first)
        begin, end = self._range(writer, first)
        exists = f"{row} < {self.sizes[self.kernel.rows]}"
        if vacant and not skewed:
            own = writer.assign("own_begin", TileValue(f"gl.where({exists}, {begin}, {end} - 1)"), writer.outer).text
            walk = self._down(own, end, "", "", f"{own} - {begin}")
        else:
            walk = self._down(begin, end)
        if not skewed and not some:
            return walk
        low, high, full_begin, full_end = self._ends(writer, "own", row, H200.product_rows)
        partial = f"(tile < {full_begin}) | (tile >= {full_end})"
        if not skewed:
            return replace(walk, partial=partial)
        writer.outer.lines += [
            f"{low} = gl.minimum(gl.maximum({low}, {begin}), {end} - 1)",
            f"{high} = gl.minimum(gl.maximum({high}, {low} + 1), {end})",
            *([f"{low} = gl.where({exists}, {low}, {high} - 1)"] if vacant else []),
        ]
        return self._down(low, high, partial, f"{end} - {high}", f"{low} - {begin}")

    @staticmethod
    def _down(begin: str, end: str, partial: str = "", before: str = "", after: str = "") -> Walk:
        """From the end of a range: under a diagonal the tiles that need the guard come first."""
        return Walk(f"{end} - {begin}", (f"tile = {end} - 1 - {{t}}",), partial, before, after)

    # Lists

    def _listed(self, writer: GluonWriter, first: str) -> Walk:
        """All of an item's list; its parts are those of `shared_visits`."""
        mine, every = self._list(writer, first)
        return Walk(every, self._entry(mine, "{t}"))

    def _own(self, writer: GluonWriter, first: str) -> Walk:
        """A warpgroup's part of the list."""
        mine, every = self._list(writer, first)
        load = lambda place: TileValue(f"gl.load({mine} + {place} + 2 * W)")
        begin = writer.assign("own_begin", load(1), writer.outer).text
        end = writer.assign("own_end", load(2), writer.outer).text
        return Walk(
            f"{end} - {begin}", self._entry(mine, f"{begin} + {{t}}"), "entry >> W & 1 != 0", begin, f"{every} - {end}"
        )

    def _entry(self, mine: str, place: str) -> tuple[str, ...]:
        consumers = self.config.consumers
        return f"entry = gl.load({mine} + {1 + 2 * consumers} + {place})", f"tile = entry >> {consumers}"

    def _list(self, writer: GluonWriter, first: str) -> tuple[str, str]:
        """Names of this item's list and of how many tiles it has."""
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
        """The name of where a warpgroup's words begin. Rows that do not exist have those of the last tile."""
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

    def _range(self, writer: GluonWriter, first: str) -> tuple[str, str]:
        begin, end, _, _ = self._ends(writer, "block", first, self.block)
        count = f"gl.cdiv({self.sizes[self.loop.dim]}, {self.config.loop_tile})"
        writer.outer.lines += [
            f"{begin} = gl.minimum({begin}, {count} - 1)",
            f"{end} = gl.minimum(gl.maximum({end}, {begin} + 1), {count})",
        ]
        return begin, end

    def _ends(self, writer: GluonWriter, hint: str, first: str, height: int) -> tuple[str, str, str, str]:
        """Names of begin, end (in tiles) and of the range of full tiles for `height` rows from `first`."""
        loop, tile, size = self.loop, self.config.loop_tile, self.sizes[self.loop.dim]
        last = f"gl.minimum({first} + {height}, {self.sizes[self.kernel.rows]}) - 1"
        last = writer.assign(f"{hint}_last_row", TileValue(f"gl.maximum({last}, {first})"), writer.outer).text
        at = lambda limit, upper, strict: self._bound(
            writer, limit, last if limit.rising == (upper != strict) else first
        )
        fold = lambda function, start, limits, upper, strict: _nest(
            function, start, [at(x, upper, strict) for x in limits]
        )
        texts = {
            "begin": f"{fold('gl.maximum', '0', loop.lowers, False, False)} // {tile}",
            "full_begin": f"gl.cdiv({fold('gl.maximum', '0', loop.lowers, False, True)}, {tile})",
            "end": f"gl.cdiv(gl.maximum({fold('gl.minimum', size, loop.uppers, True, False)}, 0), {tile})",
            "full_end": f"gl.maximum({fold('gl.minimum', size, loop.uppers, True, True)}, 0) // {tile}",
        }
        found = {n: writer.assign(f"{hint}_{n}", TileValue(text), writer.outer).text for n, text in texts.items()}
        return found["begin"], found["end"], found["full_begin"], found["full_end"]

    def _bound(self, writer: GluonWriter, limit: Limit, row: str) -> str:
        rows, bound = self.kernel.rows, limit.bound
        if rows in bound.dims:
            writer.scalars[row] = row
            bound = substitute(bound, {iota(rows): make("var", (), (row, "int64"))})
        return f"gl.cast({writer.value(bound).text}, gl.int32)" if reads_a_tensor(bound) else writer.value(bound).text


def reads_a_tensor(term: Term) -> bool:
    """Whether a term reads a tensor."""
    return any(n.op == "load" for n in subterms(term))


def _nest(function: str, start: str, texts: list[str]) -> str:
    for text in texts:
        start = f"{function}({start}, {text})"
    return start

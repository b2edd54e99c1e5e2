"""How a Hopper kernel is laid out in time and space: one record, default rows as data, and what a record needs.

A schedule never changes what is computed, up to rounding. The rows were measured on an H200 for full and causal forms,
so they are guesses for others.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace

from ..plan.device import MOST_REGISTERS, REGISTERS, RESERVED, ROWS, SHARED_MEMORY, WARPGROUP

EIGHTH = 8  # special functions are spared in eighths


def knob(*values):
    """A setting's default and, with it, the values that a search tries."""
    return field(default=values[0], metadata={"values": values})


@dataclass(frozen=True, kw_only=True)
class Knobs:
    """Settings beside the tile, each with what a search tries: a new one is a field here, and every table, point and
    space has it. turns: warpgroups issue products in turn; late: the wait for the next tile follows that for the last
    product; lazy: rescale only when a scale grows by more than 2^8; ordered: tiles of rows go to programs by a table,
    where their lengths are known and differ; send: columns of results that leave at a time by shared memory, 0 if they
    leave by pointers; chained: an item's first scores are issued with the last products of the item before;
    residents: programs on a multiprocessor at a time, which hide each other's beginnings and ends of items;
    spared: of eight special functions that can be done by multiply-adds (lowering/gluon/device_math.py), so many are;
    deferred: copied tiles over rows and loop are read once scores are there, not while these are computed, which takes
    registers.
    """

    turns: bool = knob(False, True)
    late: bool = knob(False, True)
    lazy: bool = True
    ordered: bool = True
    send: int = knob(256, 64, 0)
    chained: bool = knob(False, True)
    residents: int = knob(1, 2, 3)
    spared: int = 0
    deferred: bool = False


@dataclass(frozen=True)
class Schedule(Knobs):
    """consumers: warpgroups of 64 rows; tile: columns of a loop tile; depth: tiles in flight in every ring;
    queries: buffers of what a tile of rows loads.
    """

    consumers: int = knob(2, 1, 3, 4)
    tile: int = knob(128, 64, 32)
    depth: int = knob(2, 3, 4, 1)
    queries: int = knob(1, 2)

    @property
    def registers(self) -> tuple[int, int, int]:
        """Of a thread: as compiled, of a consumer, of the producer, which is padded to a warpgroup."""
        groups, producer = self.consumers + 1, 24 if self.consumers < 3 else 32
        compiled = REGISTERS // (WARPGROUP * groups * self.residents) // 8 * 8
        consumer = (compiled * groups - producer) // self.consumers // 8 * 8
        return min(compiled, 248), min(consumer, MOST_REGISTERS), producer

    @property
    def terminates(self) -> bool:
        """Whether no warpgroup waits for ever. With one tile in flight, whoever waits for the next one before its last
        product is done waits for itself, and whoever does so in its turn waits for the others.
        """
        return (self.depth > 1 or (self.late and not self.turns)) and (self.consumers > 1 or not self.turns)

    @property
    def lasting(self) -> Schedule:
        """The same, changed so that it terminates."""
        alone = self.depth == 1 or self.consumers == 1
        return replace(self, turns=self.turns and not alone, late=self.late or self.depth == 1)

    @property
    def shared(self) -> int:
        """Bytes of shared memory that one program may have."""
        return (SHARED_MEMORY + RESERVED) // self.residents - RESERVED

    def __str__(self) -> str:
        flags = [n for n in ("turns", "late", "lazy", "ordered", "chained", "deferred") if getattr(self, n)]
        flags += [f"send {self.send}"] if self.send else []
        flags += [f"spared {self.spared}"] if self.spared else []
        return (
            f"{self.consumers}x{ROWS}x{self.tile} depth {self.depth} queries {self.queries} residents {self.residents} "
            + " ".join(flags)
        )


KNOBS = tuple(f.name for f in fields(Knobs))
ANY = 1 << 30


@dataclass(frozen=True)
class Row:
    """A default for kernels whose widest operand has up to `width` columns and whose accumulators together have
    up to `columns`, for loops up to `length` of which nine in ten tiles of rows run up to `run`. None is
    either: uneven, the lengths of the loop differ between tiles of rows; crowded, the code between the products
    reads tensors or coordinates; copied, of these some tile by tile; sloped, a gauge has sums of coordinates that are
    numbers of rows and columns; mapped, a map in memory says which tiles run.
    """

    width: int
    columns: int
    length: int
    uneven: bool | None
    crowded: bool | None
    schedule: Schedule
    run: int = ANY
    copied: bool | None = None
    sloped: bool | None = None
    mapped: bool | None = None
    slower: float = 0.0  # by this part than plain Triton, each with its defaults, where that was measured


# First match wins.
DEFAULTS = (
    Row(64, 64, ANY, True, None, Schedule(1, 64, 3, 2, residents=3), run=700),
    Row(64, 64, 512, None, True, Schedule(4, 64, 2, 2, turns=True, lazy=False, deferred=True), copied=True),
    Row(64, 64, ANY, None, True, Schedule(4, 64, 2, 2, deferred=True), copied=True),
    Row(64, 64, ANY, None, True, Schedule(3, 64, 4, 2, turns=True)),
    Row(64, 64, ANY, True, False, Schedule(4, 64, 4, 2, turns=True, chained=True)),
    Row(64, 64, ANY, None, False, Schedule(3, 128, 4, 2, turns=True, chained=True), sloped=True),
    Row(64, 64, 256, False, False, Schedule(4, 64, 4, 2)),
    Row(64, 64, ANY, None, False, Schedule(3, 128, 4, 2, turns=True)),
    Row(128, 128, ANY, True, None, Schedule(1, 64, 2, 2, residents=2), run=512),
    Row(128, 128, ANY, True, None, Schedule(1, 64, 2, 2, residents=2), run=1000, mapped=True),
    Row(128, 128, 512, None, True, Schedule(2, 64, 2, 2, deferred=True), copied=True),
    Row(128, 128, ANY, None, True, Schedule(3, 64, 2, 1, deferred=True), copied=True),
    Row(128, 128, 1024, True, None, Schedule(2, 128, 2, 2, turns=True, chained=True)),
    Row(128, 128, ANY, True, False, Schedule(3, 64, 4, 1, late=True), run=1100),
    Row(128, 128, ANY, True, None, Schedule(2, 128, 2, 2, turns=True, chained=True)),
    Row(128, 128, ANY, None, None, Schedule(2, 128, 2, 2, turns=True)),
    Row(128, 192, ANY, None, None, Schedule(2, 64, 2, 1, late=True)),
    Row(256, 256, ANY, None, None, Schedule(2, 64, 2, 1, late=True)),
)


def default_row(
    width: int,
    columns: int,
    length: int,
    run: float,
    uneven: bool,
    crowded: bool,
    copied=False,
    sloped=False,
    mapped=False,
) -> Row | None:
    """The first default row that fits, None if accumulators need more registers than threads have."""
    for row in DEFAULTS:
        fits = width <= row.width and columns <= row.columns and length <= row.length and run <= row.run
        known = ((row.uneven, uneven), (row.crowded, crowded), (row.copied, copied), (row.sloped, sloped))
        known += ((row.mapped, mapped),)
        if fits and all(wanted in (None, found) for wanted, found in known):
            return row
    return None


def pace(live: int, consumers: int) -> float:
    """How long warpgroups take for a tile if `live` of them have rows, over all of them: they share the units."""
    return (consumers + 2 * live) / (3 * consumers)


def duration(count: int, points: int, schedule: Schedule, consumers: int, dealt: bool, places: int) -> float:
    """How long `points` times `count` rows take in tiles of 64 rows a consumer, in tiles of one row: whole waves of
    programs, or, where a table deals out work of uneven length, what each program has on average.
    """
    height, programs = ROWS * consumers, places * schedule.residents
    tiles = -(-count // height)
    last = -(-(count - height * (tiles - 1)) // ROWS)
    whole, part = pace(consumers, schedule.consumers), pace(last, schedule.consumers)
    if tiles == 1 or not (dealt or last < consumers):
        waves = -(-points * tiles // programs) * part
    else:
        waves = max(points * ((tiles - 1) * whole + part) / programs, whole)
    return waves * ROWS * schedule.consumers * schedule.residents

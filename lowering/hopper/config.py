"""Settings of a warp-specialised Hopper kernel: one record, and a table of measured defaults.

Settings never change what is computed, up to rounding. The defaults were measured on an H200 for full and causal
attention, so they are guesses for other kernels.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Protocol, TypeVar, dataclass_transform

from ..plan.device import H200
from ..plan.kernel_config import NO_LIMIT, DefaultRow, at_most, equal_to, first_match

EIGHTHS = 8  # the share of special functions that multiply-adds replace is counted in eighths

Record = TypeVar("Record")


def setting(*, default: Any, others: tuple = (), reported_as: str = "", kw_only: bool = True) -> Any:
    """A setting: its default, and the other values that a search tries.

    reported_as: its name in reports and in emitted text, where that is not the field's.
    """
    metadata = {"values": (default, *others), "reported_as": reported_as}
    return field(default=default, kw_only=kw_only, metadata=metadata)


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(setting,))
def record_of_settings(cls: type[Record]) -> type[Record]:
    """A frozen dataclass whose fields are settings. Type checkers read from it which of them are given by name only."""
    return dataclass(frozen=True)(cls)


class WarpSettings(Protocol):
    """What the text of any warp-specialised kernel asks of its settings."""

    @property
    def consumers(self) -> int:
        """Warpgroups that have 64 rows of their own."""

    @property
    def warpgroups(self) -> int:
        """Warpgroups that compute."""

    @property
    def loop_tile(self) -> int:
        """Columns of a loop tile."""

    @property
    def row_tile(self) -> int:
        """Rows of one program."""

    @property
    def emulated_eighths(self) -> int:
        """Of eight special functions, so many are done by multiply-adds."""

    @property
    def registers(self) -> tuple[int, int, int]:
        """Registers of a thread: as compiled, of a consumer, of the producer."""

    @property
    def residents(self) -> int:
        """Programs on one multiprocessor."""

    @property
    def ordered(self) -> bool:
        """Whether work of unequal length is given to programs by a table."""


@record_of_settings
class HopperConfig:
    """Settings of one kernel. A new setting is a field here; tables, reports and the search then have it.

    value_warpgroups: warpgroups without scores, which add up a part of the columns of wide values; value products
    are then issued in the step of their scores. turns: warpgroups issue their products in turn (ping-pong). late: a
    warpgroup waits for the next tile after its last product, not before. lazy: totals are rescaled only when a
    scale grows by more than 2^8. ordered: where lengths of row tiles differ and are known, a table gives them to
    programs. send: columns of results that leave at a time through shared memory; 0: results are stored through
    pointers. chained: the first scores of a work item are issued with the last products of the item before.
    residents: programs on one multiprocessor, which hide the beginnings and ends of each other's items.
    emulated_eighths: of eight special functions, so many are done by multiply-adds. deferred: copied tiles over
    rows and loop are read when scores are there, not while they are computed, which takes registers. consumers:
    warpgroups that compute 64 rows each. loop_tile: columns of a loop tile. stages: tiles in flight in every ring.
    row_buffers: buffers for what a row tile loads.
    """

    turns: bool = setting(default=False, others=(True,))
    late: bool = setting(default=False, others=(True,))
    lazy: bool = setting(default=True)
    ordered: bool = setting(default=True)
    send: int = setting(default=256, others=(64, 0))
    chained: bool = setting(default=False, others=(True,))
    residents: int = setting(default=1, others=(2, 3))
    emulated_eighths: int = setting(default=0, reported_as="spared")
    deferred: bool = setting(default=False)
    consumers: int = setting(default=2, others=(1, 3, 4), kw_only=False)
    loop_tile: int = setting(default=128, others=(64, 32), reported_as="tile", kw_only=False)
    stages: int = setting(default=2, others=(3, 4, 1), reported_as="depth", kw_only=False)
    row_buffers: int = setting(default=1, others=(2,), reported_as="queries", kw_only=False)
    value_warpgroups: int = setting(default=0, others=(1,), reported_as="value groups")

    @property
    def row_tile(self) -> int:
        """Rows of one program."""
        return H200.product_rows * self.consumers

    @property
    def warpgroups(self) -> int:
        """Warpgroups that compute."""
        return self.consumers + self.value_warpgroups

    @property
    def row_groups(self) -> int:
        """Warpgroups that share out the rows of a program."""
        return self.consumers

    @property
    def warps(self) -> int:
        """Warps that compute."""
        return 4 * self.warpgroups

    @property
    def registers(self) -> tuple[int, int, int]:
        """Registers of a thread: as compiled, of a consumer, of the producer, which is padded to a warpgroup."""
        groups, producer = self.warpgroups + 1, 24 if self.warpgroups < 3 else 32
        compiled = H200.registers // (H200.warpgroup * groups * self.residents) // 8 * 8
        consumer = (compiled * groups - producer) // self.warpgroups // 8 * 8
        return min(compiled, 248), min(consumer, H200.consumer_registers), producer

    @property
    def terminates(self) -> bool:
        """Whether no warpgroup waits forever.

        With one tile in flight, a warpgroup that waits for the next tile before its last product is done waits for
        itself. One that does so during its turn waits for the others. With value warpgroups none is waited for early.
        """
        if self.value_warpgroups:
            return self.consumers == 1 and not self.turns
        return (self.stages > 1 or (self.late and not self.turns)) and (self.consumers > 1 or not self.turns)

    @property
    def terminating(self) -> HopperConfig:
        """The same settings, changed where needed so that every warpgroup terminates."""
        alone = self.stages == 1 or self.consumers == 1
        return replace(self, turns=self.turns and not alone, late=self.late or self.stages == 1)

    @property
    def shared(self) -> int:
        """Bytes of shared memory that one program may have."""
        return (H200.shared_bytes + H200.reserved_bytes) // self.residents - H200.reserved_bytes

    def __str__(self) -> str:
        flags = [n for n in ("turns", "late", "lazy", "ordered", "chained", "deferred") if getattr(self, n)]
        flags += [f"send {self.send}"] if self.send else []
        flags += [f"spared {self.emulated_eighths}"] if self.emulated_eighths else []
        flags += [f"value groups {self.value_warpgroups}"] if self.value_warpgroups else []
        return (
            f"{self.consumers}x{H200.product_rows}x{self.loop_tile} depth {self.stages} queries {self.row_buffers} "
            f"residents {self.residents} " + " ".join(flags)
        )


SETTINGS = tuple(f.name for f in fields(HopperConfig))
REPORTED_AS = {f.name: f.metadata["reported_as"] or f.name for f in fields(HopperConfig)}


@dataclass(frozen=True)
class KernelClass:
    """What the defaults of a kernel depend on.

    width: columns of the widest operand. columns: of all accumulators together. length: of the loop. run: columns that
    nine in ten row tiles process at most. uneven: the lengths of the loop differ between row tiles. crowded: the code
    between the products reads tensors or coordinates. copied: some of these tensors are copied tile by tile. sloped: an
    exponent has sums of coordinates that are numbers of rows and columns. mapped: a map in memory says which tiles run.
    wide: one matrix has more columns than one warpgroup holds. narrow: weights and values are e4m3.
    """

    width: int
    columns: int
    length: int
    run: float
    uneven: bool
    crowded: bool
    copied: bool = False
    sloped: bool = False
    mapped: bool = False
    wide: bool = False
    narrow: bool = False


@dataclass(frozen=True, kw_only=True)
class HopperDefault(DefaultRow):
    """Default settings for a class of kernels; the columns are those of KernelClass.

    slower: the share of its time by which this form was measured to be slower than plain Triton, each with its
    defaults; 0 where it is faster.
    """

    width: int = at_most()
    columns: int = at_most()
    length: int = at_most()
    run: float = at_most()
    uneven: bool | None = equal_to()
    crowded: bool | None = equal_to()
    copied: bool | None = equal_to()
    sloped: bool | None = equal_to()
    mapped: bool | None = equal_to()
    wide: bool | None = equal_to()
    narrow: bool | None = equal_to()
    config: HopperConfig
    slower: float = 0.0

    @property
    def is_for_short_items(self) -> bool:
        """Whether the row only holds where row tiles process few columns."""
        return self.run < NO_LIMIT


# The first row that matches counts.
HOPPER_DEFAULTS = (
    HopperDefault(
        width=64, columns=64, uneven=True, narrow=True, config=HopperConfig(4, 64, 4, 2, turns=True, chained=True)
    ),
    HopperDefault(width=64, columns=64, narrow=True, config=HopperConfig(3, 128, 4, 2, turns=True)),
    HopperDefault(width=128, columns=128, narrow=True, config=HopperConfig(2, 128, 2, 2, late=True, chained=True)),
    HopperDefault(width=256, columns=256, narrow=True, config=HopperConfig(2, 64, 2, 2, late=True)),
    HopperDefault(width=64, columns=64, uneven=True, run=700, config=HopperConfig(1, 64, 3, 2, residents=3)),
    HopperDefault(
        width=64,
        columns=64,
        length=512,
        crowded=True,
        copied=True,
        config=HopperConfig(4, 64, 2, 2, turns=True, lazy=False, deferred=True),
    ),
    HopperDefault(width=64, columns=64, crowded=True, copied=True, config=HopperConfig(4, 64, 2, 2, deferred=True)),
    HopperDefault(width=64, columns=64, crowded=True, config=HopperConfig(3, 64, 4, 2, turns=True)),
    HopperDefault(
        width=64, columns=64, uneven=True, crowded=False, config=HopperConfig(4, 64, 4, 2, turns=True, chained=True)
    ),
    HopperDefault(
        width=64, columns=64, crowded=False, sloped=True, config=HopperConfig(3, 128, 4, 2, turns=True, chained=True)
    ),
    HopperDefault(
        width=64, columns=64, length=128, uneven=False, crowded=False, config=HopperConfig(1, 128, 2, 2, residents=2)
    ),
    HopperDefault(width=64, columns=64, length=256, uneven=False, crowded=False, config=HopperConfig(4, 64, 4, 2)),
    HopperDefault(width=64, columns=64, crowded=False, config=HopperConfig(3, 128, 4, 2, turns=True)),
    HopperDefault(width=128, columns=128, uneven=True, run=512, config=HopperConfig(1, 64, 2, 2, residents=2)),
    HopperDefault(
        width=128, columns=128, uneven=True, run=1000, mapped=True, config=HopperConfig(1, 64, 2, 2, residents=2)
    ),
    HopperDefault(
        width=128, columns=128, length=512, crowded=True, copied=True, config=HopperConfig(2, 64, 2, 2, deferred=True)
    ),
    HopperDefault(width=128, columns=128, crowded=True, copied=True, config=HopperConfig(3, 64, 2, 1, deferred=True)),
    HopperDefault(
        width=128, columns=128, length=1024, uneven=True, config=HopperConfig(2, 128, 2, 2, turns=True, chained=True)
    ),
    HopperDefault(
        width=128, columns=128, uneven=True, crowded=False, run=1100, config=HopperConfig(3, 64, 4, 1, late=True)
    ),
    HopperDefault(width=128, columns=128, uneven=True, config=HopperConfig(2, 128, 2, 2, turns=True, chained=True)),
    HopperDefault(width=128, columns=128, config=HopperConfig(2, 128, 2, 2, turns=True)),
    HopperDefault(width=128, columns=192, config=HopperConfig(2, 64, 2, 1, late=True)),
    HopperDefault(width=256, columns=256, config=HopperConfig(2, 64, 2, 1, late=True)),
    # Measured on latents. Keys and values of 512 columns each have one tile in flight: that took 0.8 of the time of two
    # tiles of 32 keys, and 0.36 of plain Triton's.
    HopperDefault(width=512, columns=512, wide=True, config=HopperConfig(1, 64, 2, 1, send=0, value_warpgroups=1)),
)


def of_pieces(columns: int, loop_tile: int) -> HopperConfig:
    """Settings of a loop in pieces. columns: of its matrices. loop_tile: as plain Triton has it for the same bits.

    The totals take the shared memory by which results would leave and items would begin ahead. Three warpgroups keep
    registers in memory where a length is no multiple of a tile.
    """
    return HopperConfig(2, loop_tile, 4 if columns <= H200.product_rows else 2, 1, turns=True, send=0)


def default_row(kind: KernelClass) -> HopperDefault | None:
    """The first default row for a class; None if its accumulators need more registers than threads have."""
    return first_match(HOPPER_DEFAULTS, asdict(kind))


def pace(live: int, consumers: int) -> float:
    """How long warpgroups take for a tile if `live` of them have rows, over all of them: they share the units."""
    return (consumers + 2 * live) / (3 * consumers)


def duration(count: int, points: int, config: HopperConfig, consumers: int, dealt: bool, places: int) -> float:
    """How long `points` times `count` rows take in tiles of 64 rows a consumer, in tiles of one row: whole waves of
    programs, or, where a table deals out work of uneven length, what each program has on average.
    """
    height, programs = H200.product_rows * consumers, places * config.residents
    tiles = -(-count // height)
    last = -(-(count - height * (tiles - 1)) // H200.product_rows)
    whole, part = pace(consumers, config.consumers), pace(last, config.consumers)
    if tiles == 1 or not (dealt or last < consumers):
        waves = -(-points * tiles // programs) * part
    else:
        waves = max(points * ((tiles - 1) * whole + part) / programs, whole)
    return waves * H200.product_rows * config.consumers * config.residents

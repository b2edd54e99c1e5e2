"""Settings of a plain Triton kernel, and tables of default settings.

A table is a tuple of rows with named columns; the first row that matches a kernel's facts counts. Settings change how
fast a kernel is, never what it computes, up to rounding. Example: a row with `width=128` matches a kernel whose widest
resident tile has 96 columns, since the column `width` is an upper bound.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from operator import ge
from typing import Any, TypeVar

MIN_ELEMENTS_OF_A_WIDE_TILE = 2048  # from so many pairs of row and column on, more than four warps hold a tile
NO_LIMIT = 1 << 30  # the bound of a column that any kernel is below


@dataclass(frozen=True)
class TritonConfig:
    """Settings of one launch: elements of a row tile and of a loop tile, warps of a program, tiles in flight.

    chunks: how many chunks each loop is split into (split-K); 0: as many as fill the device.
    """

    row_tile: int = 128
    loop_tile: int = 64
    warps: int = 4
    stages: int = 2
    chunks: int = 0

    @property
    def warpgroups(self) -> int:
        """Groups of four warps, at least one."""
        return max(1, self.warps // 4)

    @property
    def row_groups(self) -> int:
        """Warpgroups that share out the rows of a program: all."""
        return self.warpgroups

    def smaller(self) -> Iterator[TritonConfig]:
        """Configurations that need less and less of registers and of shared memory.

        First more threads hold a tile, then loads have fewer stages, then the longer side of the tile is halved.
        The smallest tile is tried with four and eight warps at the end: one warp may need thousands of registers.
        """
        config = replace(self, warps=max(self.warps, 8) if self._is_wide else self.warps)
        if config != self:
            yield config
        for stages in range(self.stages - 1, 0, -1):
            yield (config := replace(config, stages=stages))
        while max(config.row_tile, config.loop_tile) > 16:
            longer = "loop_tile" if config.loop_tile >= config.row_tile else "row_tile"
            config = replace(config, **{longer: getattr(config, longer) // 2})
            yield (config := replace(config, warps=config.warps if config._is_wide else 4))
        yield from (replace(config, warps=warps) for warps in (4, 8) if warps > config.warps)

    @property
    def elements_of_a_thread(self) -> float:
        """Elements of a tile of rows and columns for each thread."""
        return self.row_tile * self.loop_tile / (32 * self.warps)

    def elements_to_try_next(self, excess: float) -> float:
        """The most elements that a thread may have in the next configuration that is worth compiling.

        excess: registers that a thread kept in memory, as a multiple of those that it may keep. Compiling a kernel that
        keeps thousands takes seconds. Example: 64x32 with 8 warps has 8 elements a thread; with an excess of 40, 4.
        """
        parts = next((n for least, n in ((64, 4), (4, 2)) if excess > least), 1)
        return self.elements_of_a_thread / parts

    @property
    def _is_wide(self) -> bool:
        return self.row_tile * self.loop_tile >= MIN_ELEMENTS_OF_A_WIDE_TILE

    def __str__(self) -> str:
        return f"{self.row_tile}x{self.loop_tile} warps {self.warps} stages {self.stages}"


# Tables of defaults ---------------------------------------------------------------------------------------------------


def at_most(limit: float = NO_LIMIT) -> Any:
    """A column of a table: the row matches facts up to its value."""
    return field(default=limit, metadata={"accepts": ge})


def equal_to(value: object = None) -> Any:
    """A column of a table: the row matches facts that equal its value; None matches all."""
    return field(default=value, metadata={"accepts": lambda wanted, fact: wanted is None or wanted == fact})


@dataclass(frozen=True, kw_only=True)
class DefaultRow:
    """A row of a table of defaults. Its columns are the fields made by `at_most` and `equal_to`."""

    def matches(self, facts: Mapping[str, object]) -> bool:
        """Whether each column accepts the fact of its name."""
        columns = [f for f in fields(self) if "accepts" in f.metadata]
        return all(f.metadata["accepts"](getattr(self, f.name), facts[f.name]) for f in columns)


Row = TypeVar("Row", bound=DefaultRow)


def first_match(table: Iterable[Row], facts: Mapping[str, object]) -> Row | None:
    """The first row that matches; None if none does."""
    return next((row for row in table if row.matches(facts)), None)

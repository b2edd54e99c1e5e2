"""Tile sizes, warps and stages of a plan's kernels: default rows by what a tile holds, and candidates for a tuner.

Every number is a power of two >= 16 where it is a tile. A candidate is a guess: it counts only after its values were
compared with a right result, and one that fails or is wrong is infeasible, never slow.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

SHARED_MEMORY = {"sm_80": 166912, "sm_90": 232448, "sm_100": 232448, "gfx942": 65536}


@dataclass(frozen=True)
class Config:
    """One kernel's launch: rows and loop are tile extents; parts of its loops, 0 for as many as fill the device."""

    rows: int = 128
    loop: int = 64
    warps: int = 4
    stages: int = 2
    parts: int = 0

    def smaller(self) -> Iterator[Config]:
        """Configurations that need less and less of registers and of shared memory: tiles are held by more threads,
        then loads have one stage, then tiles are halved in turn."""
        config = self
        wider = max(self.warps, 8) if self.rows * self.loop >= SHARED_OUT else self.warps
        for change in ({"warps": wider}, {"stages": 1}):
            if replace(config, **change) != config:
                config = replace(config, **change)
                yield config
        while max(config.rows, config.loop) > 16:
            longer = "loop" if config.loop >= config.rows else "rows"
            config = replace(config, **{longer: getattr(config, longer) // 2})
            yield replace(config, warps=config.warps if config.rows * config.loop >= SHARED_OUT else 4)

    def __str__(self) -> str:
        return f"{self.rows}x{self.loop} warps {self.warps} stages {self.stages}"


@dataclass(frozen=True)
class Row:
    """A default: for held tiles up to `width` elements wide, of `bytes` an element, on an architecture ("" is any)."""

    architecture: str
    bytes: int
    width: int
    config: Config


# First match wins: rows are ordered by architecture, element size, width.
DEFAULTS = (
    Row("sm_90", 2, 128, Config(64, 64, 4, 3)),
    Row("sm_90", 2, 256, Config(128, 64, 8, 2)),
    Row("sm_90", 4, 64, Config(64, 32, 8, 2)),
    Row("sm_90", 4, 128, Config(32, 16, 4, 2)),
    Row("sm_90", 4, 256, Config(16, 16, 4, 1)),
    Row("sm_100", 2, 64, Config(128, 64, 8, 3)),
    Row("sm_100", 2, 128, Config(128, 64, 8, 3)),
    Row("sm_100", 2, 256, Config(64, 64, 4, 2)),
    Row("gfx942", 2, 64, Config(128, 64, 4, 1)),
    Row("gfx942", 2, 128, Config(128, 64, 4, 1)),
    Row("gfx942", 2, 256, Config(64, 32, 4, 1)),
    Row("", 2, 64, Config(128, 64, 4, 3)),
    Row("", 2, 128, Config(128, 64, 8, 2)),
    Row("", 2, 256, Config(64, 32, 4, 2)),
    Row("", 2, 512, Config(32, 64, 8, 2)),
    Row("", 4, 64, Config(64, 32, 8, 2)),
    Row("", 4, 128, Config(32, 16, 4, 2)),
    Row("", 8, 1 << 30, Config(16, 16, 4, 1)),
)
CUBES = Config(16, 16, 8, 1)  # for tiles of three dims, rows by loop by held: 128 float32 of 128 columns a thread
SHARED_OUT = 2048  # pairs of a tile from which on more than four warps hold it
SPILLED = 128  # registers that a thread may keep in memory: kernels that were well off keep 16, a bad one 264
PARTS = Config(64, 16, 4, 1)  # without a loop, where a held matrix of up to 64 columns is multiplied in parts
CARRIED, WIDE = 128, 64  # float32 that a thread keeps of accumulators, and of a tile of three dims without them
PAIRS_KEPT = 2048  # elements of accumulators beside scores that are folded place by place
KEPT = 65536  # elements of a tensor that a tile of rows keeps in shared memory
CANDIDATES = {  # by width: (rows, loop, warps, stages) that a tuner tries
    64: "128x64x4x3 128x64x8x3 128x64x8x2 64x64x4x3 128x128x8x2 128x128x8x3 128x32x4x4 256x64x8x3 128x64x4x4",
    128: "128x128x8x3 128x128x8x2 128x64x8x3 128x64x4x3 64x64x4x3 128x64x8x2 64x128x4x2 128x32x4x4",
    256: "64x64x4x2 64x64x4x3 64x32x4x3 128x64x8x2 128x32x8x2",
}


def default_config(width: int, element_bytes: int, architecture: str = "") -> Config:
    """The default for the widest held tile and the widest element that a kernel loads."""
    for row in DEFAULTS:
        if row.architecture in ("", architecture) and element_bytes <= row.bytes and width <= row.width:
            return row.config
    return Config(16, 16, 4, 1)


def of_few_rows(width: int, element_bytes: int) -> Config:
    """The default where rows are fewer than a tile has: reading the loop's tiles is all the work, 32 KiB at a time."""
    fitting = 2**15 // (element_bytes << (width - 1).bit_length())
    return Config(16, max(16, min(128, fitting)), 4, 2 if fitting <= 128 else 3)


def of_pairs(config: Config) -> Config:
    """For scores of several operations on pairs, whose operands fill registers: a thread has 16 of them."""
    return replace(config, rows=min(config.rows, 64), loop=min(config.loop, 64), warps=8)


def of_differences(config: Config, width: int, weights: bool) -> Config:
    """Where a tile has twice as many differences as columns. weights: they are skewed, beside a wider accumulator."""
    warps, stages = (8 if width > 64 else 4, 1) if weights else (4, 1 if width > 64 else 2)
    return replace(config, rows=min(config.rows, 64), loop=min(config.loop, 64), warps=warps, stages=stages)


def of_steps(config: Config, width: int) -> Config:
    """For scores that are folded place by place: a thread keeps 16 elements of a held row, or of 16 of them."""
    rows, stages = min(config.rows, max(16, PAIRS_KEPT >> (width - 1).bit_length())), min(config.stages, 2)
    return replace(config, rows=rows, loop=min(config.loop, 64), warps=4, stages=stages)


def cube_config(lead: int, carried: int, width: int) -> Config:
    """For tiles of three dims: places of the leading one, elements of accumulators for each row, and of a held row.

    Rows are a power of two, whatever a held row's width is.
    """
    warps = 8 if CARRIED * 128 < 16 * carried or (carried <= lead and lead >= 8) else 4
    loop = 32 if carried <= lead < 16 else 16
    rows = CARRIED * 32 * warps // carried if carried > lead else WIDE * 32 * warps // (lead * loop)
    rows = min(128, rows, KEPT // (lead * width))
    return Config(max(16, 1 << (rows.bit_length() - 1)), loop, warps, 2)


def candidates(width: int) -> tuple[Config, ...]:
    """Configurations worth measuring for a held tile of this width."""
    texts = next((found for limit, found in CANDIDATES.items() if width <= limit), "32x32x4x2").split()
    return tuple(Config(*map(int, text.split("x"))) for text in texts)

"""Settings of a joined kernel on Hopper: one record, and a table of defaults.

Settings never change what is computed, up to rounding. The defaults were measured for the gradients of full and causal
attention. Example: `default_config(128)` has 64 columns a tile, since two accumulators of 128 columns fill a thread.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..hopper.config import record_of_settings, setting
from ..plan.device import H200
from ..plan.kernel_config import DefaultRow, at_most, first_match

CONSUMERS = 2  # warpgroups of a program; each has half of its rows
STAGES = 2  # tiles in flight: the barriers between the warpgroups count them by their parity


@record_of_settings
class JoinedConfig:
    """Settings of one kernel.

    loop_tile: columns of a loop tile. turns: warpgroups issue their last products of a tile in turn. runs: results go
    through shared memory, so that a thread stores elements that lie in one run. persistent: a program goes through many
    items; else it has one, and the device gives programs to multiprocessors as these are free.
    """

    loop_tile: int = setting(default=64, others=(128,), kw_only=False)
    turns: bool = setting(default=True, others=(False,))
    runs: bool = setting(default=True, others=(False,))
    persistent: bool = setting(default=False, others=(True,))

    consumers = CONSUMERS
    stages = STAGES
    residents = 1
    ordered = True
    emulated_eighths = 0

    @property
    def row_tile(self) -> int:
        """Rows of one program."""
        return H200.product_rows * self.consumers

    @property
    def registers(self) -> tuple[int, int, int]:
        """Registers of a thread: as compiled, of a consumer, of the producer."""
        return 168, 240, 24

    def __str__(self) -> str:
        return " ".join(
            [f"{self.row_tile}x{self.loop_tile}", *(n for n in ("turns", "runs", "persistent") if getattr(self, n))]
        )


@dataclass(frozen=True, kw_only=True)
class JoinedDefault(DefaultRow):
    """Default settings. columns: of all accumulators together. tiles: products whose tiles are live at a time."""

    columns: int = at_most()
    tiles: int = at_most()
    config: JoinedConfig


JOINED_DEFAULTS = (
    JoinedDefault(columns=128, tiles=2, config=JoinedConfig(128)),
    JoinedDefault(columns=256, tiles=2, config=JoinedConfig(64)),
    JoinedDefault(columns=128, tiles=4, config=JoinedConfig(64)),
)


def default_config(columns: int, tiles: int) -> JoinedConfig | None:
    """The settings for so many columns of accumulators and so many products; None if they fit no thread."""
    row = first_match(JOINED_DEFAULTS, {"columns": columns, "tiles": tiles})
    return None if row is None else row.config

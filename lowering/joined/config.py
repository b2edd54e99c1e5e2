"""Settings of a joined kernel on Hopper: one record, and a table of defaults.

Settings never change what is computed, up to rounding. The defaults were measured for the gradients of full and causal
attention. Example: with two accumulators of 128 columns, a tile of the loop has 64 columns, because a thread has no
registers for more; with two of 256 columns, each warpgroup has one of them.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from ..hopper.config import record_of_settings, setting
from ..plan.device import H200
from ..plan.kernel_config import DefaultRow, at_most, equal_to, first_match

WARPGROUPS = 2  # of a program, that compute
STAGES = 2  # tiles in flight: the barriers between the warpgroups count them by their parity


@record_of_settings
class JoinedConfig:
    """Settings of one kernel.

    loop_tile: columns of a loop tile. turns: warpgroups issue their last products of a tile in turn. runs: results go
    through shared memory, so that a thread stores elements that lie in one run. persistent: a program goes through many
    items; else it has one, and the device gives programs to multiprocessors as these are free. by_products: both
    warpgroups have all rows, and each has some of the products; else each has half of the rows, and all products.
    in_order: programs add to a tile of a sum over the rows in one order, so that each run gives the same bits. If they
    have one item each, a program takes the next item of the list when it begins (a ticket).
    """

    loop_tile: int = setting(default=64, others=(128,), kw_only=False)
    turns: bool = setting(default=True, others=(False,))
    runs: bool = setting(default=True, others=(False,))
    persistent: bool = setting(default=True, others=(False,))
    by_products: bool = setting(default=False, others=(True,))
    in_order: bool = setting(default=False, others=(True,))

    warpgroups = WARPGROUPS
    stages = STAGES
    residents = 1
    ordered = True
    emulated_eighths = 0

    @property
    def consumers(self) -> int:
        """Warpgroups that have 64 rows of their own."""
        return 1 if self.by_products else self.warpgroups

    @property
    def takes_tickets(self) -> bool:
        """Whether a program takes the next item of the list when it begins.

        It waits for earlier items only, and the programs that have these have begun before it.
        """
        return self.in_order and not self.persistent

    @property
    def row_tile(self) -> int:
        """Rows of one program."""
        return H200.product_rows * self.consumers

    @property
    def registers(self) -> tuple[int, int, int]:
        """Registers of a thread: as compiled, of a consumer, of the producer."""
        return 168, 240, 24

    def __str__(self) -> str:
        switches = ("turns", "runs", "persistent", "by_products", "in_order")
        return " ".join([f"{self.row_tile}x{self.loop_tile}", *(n for n in switches if getattr(self, n))])


@dataclass(frozen=True)
class JoinedClass:
    """What the defaults of a kernel depend on.

    columns: of all accumulators together. tiles: products whose tiles are live at a time. work: instructions for an
    element of a tile, between the products. uneven: items run the loop for unequally many tiles, or for many points.
    """

    columns: int
    tiles: int
    work: float
    uneven: bool


@dataclass(frozen=True, kw_only=True)
class JoinedDefault(DefaultRow):
    """Default settings; the columns are those of JoinedClass."""

    columns: int = at_most()
    tiles: int = at_most()
    work: float = at_most()
    uneven: bool | None = equal_to()
    config: JoinedConfig


BY_PRODUCTS = JoinedConfig(64, turns=False, runs=False, persistent=False, by_products=True)

# Measured on one H200 for full and causal attention of lengths 1024, 4096 and 16384. The first row that matches counts.
# Programs with one item each are faster where items differ in length, and with accumulators of 512 columns.
# Beside two accumulators of 128 columns, more work than that of a softcap makes ptxas serialise the products.
JOINED_DEFAULTS = (
    JoinedDefault(columns=128, tiles=2, work=4, uneven=False, config=JoinedConfig(128)),
    JoinedDefault(columns=128, tiles=4, config=JoinedConfig(64)),
    JoinedDefault(columns=256, tiles=2, work=16, uneven=False, config=JoinedConfig(64)),
    JoinedDefault(columns=256, tiles=2, work=16, config=JoinedConfig(64, persistent=False)),
    JoinedDefault(columns=512, tiles=2, work=16, config=BY_PRODUCTS),
)


def default_config(kind: JoinedClass) -> JoinedConfig | None:
    """The settings for a class of kernels; None if these fit no thread."""
    row = first_match(JOINED_DEFAULTS, asdict(kind))
    return None if row is None else row.config

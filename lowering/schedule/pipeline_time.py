"""The time of a warp-specialised kernel that stays on its multiprocessor: what bounds a step, and what an item adds.

A step is one tile of the loop on every warpgroup of a multiprocessor. It cannot be shorter than a warpgroup's own chain
of products and pointwise work, than any unit's work for all warpgroups, than a ring of tiles takes to be filled again,
or than the bytes take from the L2; bounds that are close add up. Constants are fitted by bench/fit_prediction.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from ..hopper.config import HopperConfig
from ..plan.device import HopperGpu


@dataclass(frozen=True)
class Demand:
    """What one loop asks of a multiprocessor: clocks of a step on each unit for one warpgroup, and sizes of blocks."""

    tensor: float
    special: float
    fma: float
    copy: float
    weights: float  # bytes of the widest tile that a step makes
    rows: float  # bytes of a block's row tiles
    lacking: float  # registers that a thread lacks
    resident: int  # blocks at once; 0 if not even one fits
    blocks: int
    steps: int  # of all blocks
    longest: int  # steps of the longest block
    share: float = 1.0  # of a block's warpgroups and steps, those that have something to do


@dataclass(frozen=True)
class HopperTiming:
    """Constants of warp-specialised kernels, in clocks where nothing else is said.

    tensor: time of products over that at peak rate, with what power takes from the clock. fma: the same of
    multiply-adds where all warpgroups wait for units. alone: of multiply-adds in a chain, where each waits for the one
    before. issue: how they and special functions add up, as an exponent. step: barriers and other dependent
    instructions of a chain. late: more of them if the next tile is waited for after the last product. crowd: how a
    chain and the pointwise work of all warpgroups add up, as an exponent. corner: how these and products do. latency:
    from the request of a tile to its arrival, without its bytes. fetch: time of its bytes over that at the L2's rate.
    hold: the share of the products' time for which a tile is read. behind: how far warpgroups in turns are apart, as a
    share of what a step is longer than a chain. bytes: for each byte of an item's row tiles. unsent: the same for each
    byte of results that do not leave through shared memory. masked: chains that are added to an item whose length
    differs from others'. spill: for each register that a thread lacks. launch: seconds.
    """

    tensor: float = 1.262
    fma: float = 2.77
    alone: float = 2.46
    issue: float = 8.5
    step: float = 208
    late: float = 17
    crowd: float = 1.35
    corner: float = 16.2
    latency: float = 0.9
    fetch: float = 1.49
    hold: float = 1.52
    behind: float = 0.311
    bytes: float = 0.0014
    unsent: float = 0.0953
    masked: float = 0.885
    spill: float = 89
    launch: float = 1.77e-5


def corner(exponent: float, *bounds: float) -> float:
    """About the largest bound, and more where others are close to it."""
    most = max(bounds)
    if not most:
        return 0.0
    return most * sum((b / most) ** exponent for b in bounds) ** (1 / exponent)


def clocks(timing: HopperTiming, d: Demand, c: HopperConfig) -> tuple[float, float]:
    """Clocks of a step of all warpgroups, and of one warpgroup's chain."""
    groups = c.consumers * c.residents * d.share
    tensor, spilled = d.tensor * timing.tensor, timing.spill * d.lacking
    pointwise, alone = (
        corner(timing.issue, d.special, d.fma * factor) + spilled for factor in (timing.fma, timing.alone)
    )
    if c.value_warpgroups:  # its own value products come behind the weights, beside those of the other warpgroups
        chain = tensor / 2 + alone + tensor / 2 / (1 + c.value_warpgroups) + timing.step
    else:
        chain = tensor / 2 + max(tensor / 2, alone) + timing.step + timing.late * c.late
    core = corner(timing.corner, corner(timing.crowd, chain, groups * pointwise), groups * tensor)
    turn = timing.behind * max(0.0, core - chain) if c.turns else 0.0
    fetched = timing.fetch * d.copy * c.residents
    ring = (timing.latency + fetched + timing.hold * groups * tensor / 2 + turn) / c.stages
    return corner(timing.corner, core, ring, d.copy * c.residents), chain


def spent(
    timing: HopperTiming, d: Demand, c: HopperConfig, device: HopperGpu, interval: int = 0
) -> tuple[float, float, float]:
    """Seconds of a launch: of steps, of what items add to them, and idle ones at its end. interval: the least clocks of
    a step, by a schedule at peak rates.

    Items of one length run in waves; others are given out by a table, which is as good as even.
    """
    step, chain = clocks(timing, d, c)
    step, even = max(step, interval), d.steps == d.longest * d.blocks
    end = (timing.bytes + timing.unsent * (not c.send)) * d.rows + timing.masked * (not even) * chain
    programs = device.multiprocessors * c.residents
    if even:
        total = ceil(d.blocks / programs) * (d.longest * step + end)
    else:
        total = max((d.steps * step + d.blocks * end) / programs, d.longest * step + end)
    steps, ends = d.steps * step / programs, d.blocks * end / programs
    return steps / device.clock, ends / device.clock, max(0.0, total - steps - ends) / device.clock


def seconds(timing: HopperTiming, d: Demand, c: HopperConfig, device: HopperGpu, interval: int = 0) -> float:
    """Time of one launch. interval: as in `spent`."""
    return sum(spent(timing, d, c, device, interval)) + timing.launch

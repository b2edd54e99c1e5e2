"""The time of a warp-specialised kernel that stays on its multiprocessor: what bounds a step, and what an item adds.

A step is one tile of the loop on every warpgroup of a multiprocessor. It cannot be shorter than a warpgroup's own chain
of products and pointwise work, than any unit's work for all warpgroups, than a ring of tiles takes to be filled again,
or than the bytes take from the L2; bounds that are close add up. Constants are fitted by bench/fit_prediction.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from ..plan.device import Machine


@dataclass(frozen=True)
class Pipeline:
    """In clocks where nothing else is said.

    tensor: time of products over that at peak rate, which also holds what power takes from the clock. fma: of
    multiply-adds where all warpgroups wait for units, alone: in a chain, where each waits for the one before; issue:
    how they and special functions add up, as an exponent. step: barriers and other dependent instructions of a chain,
    late: more of it if the next tile is waited for after the last product. crowd: how a chain and the pointwise work of
    all warpgroups add up, which share threads' time; corner: how these and products do. latency: from asking for a tile
    to its arrival, without its bytes; fetch: time of these over that at the L2's rate; hold: the share of the products'
    time for which a tile is read; behind: the share of what a step is longer than a chain that warpgroups in turns are
    apart. bytes: for each byte of an item's row tiles, unsent: of results that do not leave through shared memory;
    masked: chains, of an item whose length differs from others'. spill: for each register that a thread lacks.
    launch: seconds.
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


def _corner(exponent: float, *bounds: float) -> float:
    most = max(bounds)
    return most * sum((b / most) ** exponent for b in bounds) ** (1 / exponent)


def clocks(p: Pipeline, d, c) -> tuple[float, float]:
    """(of a step of all warpgroups, of one warpgroup's chain); d is a Demand, c a Configuration of kernel_time.py."""
    groups = c.warpgroups * c.residents * d.share
    tensor, spilled = d.tensor * p.tensor, p.spill * d.lacking
    pointwise, alone = (_corner(p.issue, d.special, d.fma * part) + spilled for part in (p.fma, p.alone))
    chain = tensor / 2 + max(tensor / 2, alone) + p.step + p.late * c.late
    core = _corner(p.corner, _corner(p.crowd, chain, groups * pointwise), groups * tensor)
    apart = p.behind * max(0.0, core - chain) if c.turns else 0.0
    ring = (p.latency + p.fetch * d.copy * c.residents + p.hold * groups * tensor / 2 + apart) / c.stages
    return _corner(p.corner, core, ring, d.copy * c.residents), chain


def seconds(p: Pipeline, d, c, machine: Machine, interval: int = 0) -> float:
    """Of one launch. Items of one length are dealt in waves, others by a table that is as good as even. interval: what
    a step takes at least, by a schedule at peak rates.
    """
    step, chain = clocks(p, d, c)
    step, even = max(step, interval), d.steps == d.longest * d.blocks
    end = (p.bytes + p.unsent * (not c.send)) * d.rows + p.masked * (not even) * chain
    programs = machine.processors * c.residents
    if even:
        total = ceil(d.blocks / programs) * (d.longest * step + end)
    else:
        total = max((d.steps * step + d.blocks * end) / programs, d.longest * step + end)
    return total / machine.clock + p.launch

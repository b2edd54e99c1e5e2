"""The configuration of a kernel that nobody tuned, chosen by what its tiles hold and what it writes.

It fits the registers and the shared memory of the device. Example: wide heads get fewer rows a tile.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

import torch

from ...egraph.terms.traversal import subterms
from ..analysis.dim_roles import several_pairs, stepped
from ..codegen.matrix_products import multiplies_in_parts
from ..codegen.tile_extents import dims_with_relative_factors, leading_dims, needs_three_dims, power_of_two
from ..launch.triton_config import (
    CUBES,
    PARTS,
    Config,
    cube_config,
    default_config,
    of_differences,
    of_few_rows,
    of_pairs,
    of_steps,
)
from ..plan.queries import roots
from ..plan.records import Kernel
from ..plan.thresholds import HELD


def widest(kernel: Kernel) -> tuple[int, int]:
    """(elements, bytes an element) of the widest held row that a tile keeps of a floating tensor."""
    placed = {*kernel.grid, *kernel.tiled, *(loop.dim for loop in kernel.loops)}
    loops = {loop.dim for loop in kernel.loops}
    width, size, streamed = 16, 2, 2
    for node in {n for root in roots(kernel) for n in subterms(root) if n.op == "load"}:
        held = [d.size for d in node.dims - placed if isinstance(d.size, int)]
        dtype = getattr(torch, node.dtype)
        if dtype.is_floating_point and held:
            width, size = max(width, *held), max(size, dtype.itemsize)
            streamed = max(streamed, dtype.itemsize if node.dims & loops else 2)
    size = size if width <= HELD else streamed  # what rows have stays in shared memory, by halves
    return width, max(size, 4 if kernel.exact else 2)


def default_for(kernel: Kernel, name: str, few: bool = False) -> Config:
    """The default configuration, for few rows another; guards that compare 64-bit data along a wide loop tile need its
    registers."""
    width, size = widest(kernel)
    every = roots(kernel)
    nodes = {n for root in every for n in subterms(root)}
    steps = stepped(kernel, nodes)
    if lead := leading_dims(kernel, nodes):
        extent = lambda dims: prod(power_of_two(d) for d in dims)
        apart = {*kernel.grid, kernel.rows, *(loop.dim for loop in kernel.loops)}
        states = [r for loop in kernel.loops for a in loop.accumulators for r in a.reductions]
        carried = max((extent(r.dims - apart) for r in states), default=0)
        return cube_config(max(map(power_of_two, lead)), carried, width)
    if needs_three_dims(kernel, every, {*kernel.grid, *steps}):
        return CUBES
    if size == 4 and multiplies_in_parts(kernel):
        return PARTS if width <= 64 else replace(PARTS, rows=128, warps=8)
    found = of_few_rows(width, size) if few else default_config(width, size, name)
    if not few:
        found = of_steps(found, width) if steps else of_pairs(found) if several_pairs(nodes) else found
        if dims := dims_with_relative_factors(kernel, nodes):
            found = of_differences(found, width, any(loop.dim in dims for loop in kernel.loops))
    guards = [(loop.dim, n) for loop in kernel.loops if loop.guard is not None for n in subterms(loop.guard)]
    long = any(n.op == "load" and dim in n.dims and n.dtype in ("int64", "float64") for dim, n in guards)
    return replace(found, loop=found.loop // 2) if long and width > 64 and found.loop > 64 else found


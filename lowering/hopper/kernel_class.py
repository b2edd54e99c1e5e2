"""What the default settings of a warp-specialised kernel depend on, and whether its items are long.

A kernel's class is made of sizes, and of how much of a loop runs: by the limits of the loop, or as a map in memory
says. Example: causal attention of length 4096 and D 128 is uneven, of 4096 columns, of which nine in ten tiles of rows
run 3712.
"""

from __future__ import annotations

import numpy as np

from ...egraph.terms.sizes import resolve
from ..masks.block_map import EMPTY, pays
from ..plan.device import H200
from ..plan.kernel_config import NO_LIMIT
from . import work_order
from .config import HopperDefault, KernelClass, default_row
from .form_facts import accumulated, crowded, sloped, width
from .kernel_form import Binding, Diagonal
from .mask_words import Packed, fine, packed

UNKNOWN_RUN = 512  # columns that a row tile is taken to process where a map in memory says which
# Columns of an item that takes so long (0.4 ms at D 128) that a program of its own costs it next to nothing: some 2 us.
MIN_LONG_COLUMNS = 32768


def is_long(binding: Binding, sizes: dict, run_here: float | None = None) -> bool:
    """Whether items are so long that each is to be a program of its own.

    A GPU gives such programs to multiprocessors as they become free: one that was held by another kernel, such as an
    exchange between GPUs, gets fewer of them. Of programs that share out the items before, those wait that find no
    multiprocessor. Example: 24 multiprocessors that are held for 2 ms delay causal attention of 27 ms by 1 ms, and by
    0.2 if items have their own programs (one H200). Full attention of 131,072 tokens on two GPUs, 4 heads at a time,
    takes 109 ms instead of 118.
    """
    if resolve(binding.loop.dim.size, sizes) < MIN_LONG_COLUMNS:
        return False
    known = kernel_class(binding, sizes, run_here)
    return min(known.length, known.run) >= MIN_LONG_COLUMNS


def kernel_class(binding: Binding, sizes: dict, run_here: float | None = None) -> KernelClass:
    """What the defaults of a kernel depend on. run_here: columns that row tiles process, where a map has said it."""
    kernel, loop, rows = binding.kernel, binding.loop, H200.product_rows
    length = resolve(loop.dim.size, sizes)
    mapped = loop.map is not None and pays(kernel, loop.map, rows, rows, sizes)
    padded = mapped and not loop.map.rows and not loop.limits
    bits = _fine_bits(binding, sizes) if mapped else None
    known = length if padded or bits is not None else run_here
    run = (UNKNOWN_RUN if known is None else known) if mapped else _usual_run(binding, sizes)
    return KernelClass(
        width=width(binding),
        columns=accumulated(binding),
        rows=resolve(kernel.rows.size, sizes),
        length=length,
        run=NO_LIMIT if binding.overlays else run,
        uneven=(mapped and not padded) or bool(loop.limits),
        crowded=crowded(
            binding if bits is None else bits.bound(binding), _copied_diagonals(binding, sizes), masked=not padded
        ),
        copied=bool(binding.overlays),
        sloped=sloped(binding),
        mapped=mapped and not padded,
        wide=binding.is_wide,
        narrow=binding.has_narrow_values,
    )


def _copied_diagonals(binding: Binding, sizes: dict) -> tuple[Diagonal, ...]:
    """The diagonals that are read by one address: those of kernels whose tiles are all whole."""
    rows, count, length = H200.product_rows, *(resolve(d.size, sizes) for d in (binding.kernel.rows, binding.loop.dim))
    return binding.diagonals if count % rows == 0 and length % (2 * rows) == 0 else ()


def _fine_bits(binding: Binding, sizes: dict) -> Packed | None:
    """The packed mask of a kernel, if its tensors have an element for each few scores.

    A map of such a guard is taken to keep every tile: one warpgroup alone reads each anew, and where most run, that is
    more than the L2 gives. So is a map by column alone, in whose kept tiles nothing but the last is partial. Other
    maps, by ids or by a table of blocks, are taken to keep few until they are there.
    """
    bits = packed(binding)
    return bits if bits and fine(bits, sizes) else None


def _usual_run(binding: Binding, sizes: dict) -> float:
    """Columns that nine in ten row tiles process at most, by the limits of the loop; NO_LIMIT if they are not known."""
    rows = H200.product_rows
    classes = work_order.classes(binding, sizes, rows, rows) if binding.loop.limits else None
    return NO_LIMIT if classes is None else rows * np.quantile((classes != EMPTY).sum(1), 0.9)


def row_of(binding: Binding, sizes: dict, run_here: float | None = None) -> HopperDefault | None:
    """The default row of a kernel; see `kernel_class`."""
    return default_row(kernel_class(binding, sizes, run_here))

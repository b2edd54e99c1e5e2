"""How much shared memory a warp-specialised kernel takes: rings of tiles, buffers of rows, and what is sent.

Barriers are not counted. Example: two tiles in flight of 128 keys and values of 128 columns, in half precision, are
128 KiB.
"""

from __future__ import annotations

from ...egraph.terms.term import Tensor
from ..plan.dtypes import BYTES
from .config import HopperConfig
from .kernel_form import Binding, Operand, chunks, sent


def bytes_of(tensor: Tensor) -> int:
    """Of one element."""
    return {"float32": 4, **dict.fromkeys(BYTES, 1)}.get(tensor.dtype, 2)


def staged(extent: int, send: int) -> int:
    """Columns of shared memory through which a chunk of a result leaves: all, or two parts in turn."""
    return extent if extent <= send else 2 * send


def row_vectors(binding: Binding) -> int:
    """How many vectors over the rows one warpgroup gives to another: of each state a factor, a scale, and its own."""
    states = [pair for step in binding.steps for pair in step.states]
    return sum(2 + sum(v.matrix is None for v in values) for _, values in states)


def shared_bytes(binding: Binding, overlays: tuple[Operand, ...], config: HopperConfig) -> int:
    """Shared memory of the rings, of the rows' buffers and of what is sent, without barriers."""
    inner = lambda operands: sum(bytes_of(o.tensor) * e for o in operands for _, e in chunks(o.inner.size))
    rows = config.row_tile
    ring = inner(binding.streams) + rows * sum(bytes_of(o.tensor) for o in overlays)
    kept = config.row_buffers * inner(binding.row_operands)
    if config.value_warpgroups:  # whose results leave through pointers
        handed = (2 * config.loop_tile + 4 * row_vectors(binding)) * rows
    else:
        handed = 2 * rows * sum(staged(e, config.send) for o in sent(binding) for _, e in chunks(o.inner.size))
    return rows * kept + config.loop_tile * config.stages * ring + handed

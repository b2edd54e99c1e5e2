"""Copies inputs that tiles would read against their order in memory, so that the axis of a tile is contiguous.

Memory is read in sectors of 32 bytes. Example: a tile over i and j of a tensor [b, i, j, h] uses one number of each
sector, and every head reads all sectors again. The copy has j next to j. So it is with a tile over i and d of queries,
keys and values that are packed as [.., i, d, 3]. Rows that do not begin at multiples of 16 bytes, as those of a 49 x 49
bias, are read number by number; the rows of a copy begin at such multiples. A copy is made only where it saves much.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import torch
import triton
import triton.language as tl

from ...egraph.terms.sizes import resolve
from ...egraph.terms.term import Dim, Term
from ..analysis.dim_roles import stepped
from ..analysis.read_places import places_read
from ..plan.queries import nodes as nodes_of
from ..plan.records import Kernel, Plan
from .current_device import allocator, on_device
from .triton_compat import Relaunch, interprets

SECTOR_BYTES = 32  # what memory gives at a time
ROWS_OF_A_TILE = 64
MIN_WASTED_BYTES = 2**24  # read in vain; with fewer, the copy costs more than it saves
OUTER_AXES = 3  # beside the two that the kernel exchanges
MAX_WIDTH = 128  # of the axis that was contiguous, for the kernel
ELEMENTS_OF_A_PROGRAM = 4096
ALIGNED_BYTES = 16  # that a thread can read at once
ALIGNED_ELEMENTS = 16  # of which Triton knows that rows of them are aligned
MIN_READS = 4  # of an element, from which a copy with aligned rows costs little beside them


@dataclass(frozen=True)
class Copy:
    """A copy of the input at `place` in which `axis` is contiguous, and how many bytes it saves."""

    place: int
    axis: int
    saved_bytes: int

    def __str__(self) -> str:
        return f"as it lies {self.saved_bytes / 2**20:.0f} MiB would be read in vain, or number by number"


def copies_of(
    plan: Plan, names: Sequence[str], tensors: Sequence[torch.Tensor], sizes: Mapping[str, int] | None = None
) -> tuple[Copy, ...]:
    """The copies to make before the plan's kernels read these tensors. sizes: values of symbolic sizes."""
    reads = _reads_by_axis(plan, dict(zip(names, tensors)), sizes or {})
    found = []
    for place, (name, tensor) in enumerate(zip(names, tensors)):
        axes = reads.get(name, {})
        if len(axes) == 1 and None not in axes:  # all reads agree on one axis
            ((axis, times),) = axes.items()
            saved = times * _wasted_bytes(tensor, axis) or _unaligned_bytes(tensor, axis, times)
            if saved >= MIN_WASTED_BYTES:
                found.append(Copy(place, axis, saved))
    return tuple(found)


def _reads_by_axis(
    plan: Plan, inputs: Mapping[str, torch.Tensor], sizes: Mapping[str, int]
) -> dict[str, dict[int | None, int]]:
    """For each input, how often each element is read along which axis. Tensors that kernels store are left out."""
    found: dict[str, dict[int | None, int]] = {}
    for kernel in plan.kernels:
        for node, dim, other in _read_along(kernel):
            axis, second = (_axis(node, d) for d in (dim, other))
            read = inputs.get(node.attrs[0].name)
            if read is not None and (second is None or read.stride(second) != 1):
                times = found.setdefault(node.attrs[0].name, {})
                times[axis] = times.get(axis, 0) + _read_count(kernel, node, sizes)
    return found


def _axis(node: Term, dim: Dim | None) -> int | None:
    """The axis whose index is the dim's coordinate."""
    axes = [k for k, index in enumerate(node.args) if dim in index.dims]
    return axes[0] if len(axes) == 1 and node.args[axes[0]].op == "iota" else None


def _read_count(kernel: Kernel, node: Term, sizes: Mapping[str, int]) -> int:
    """How often the kernel's programs read each element."""
    length = lambda d: resolve(d.size, sizes)
    tiles = -(-length(kernel.rows) // ROWS_OF_A_TILE) if kernel.rows is not None and kernel.rows not in node.dims else 1
    read = prod(length(d) for d in {*kernel.grid, *kernel.around, *node.dims})
    return tiles * max(1, read // max(1, places_read(node, length)))


def with_copies(tensors: Sequence[torch.Tensor], copies: Sequence[Copy]) -> list[torch.Tensor]:
    """The tensors, with a copy in place of each that has one."""
    return copying(tensors, copies)(tensors)


def copying(tensors: Sequence[torch.Tensor], copies: Sequence[Copy]) -> Callable[[Sequence[torch.Tensor]], list]:
    """A function that replaces tensors like these by their copies.

    All that does not depend on an address is computed here, once: a small call takes the host longer than the GPU.
    """
    ready = [(copy.place, _copier(tensors[copy.place], copy.axis)) for copy in copies]

    def run(given: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        found = list(given)
        for place, copied in ready:
            found[place] = copied(found[place])
        return found

    return on_device(tensors[0].device, run) if ready else list


def _copier(tensor: torch.Tensor, axis: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """What copies tensors like this one, so that the axis is contiguous and rows along it are aligned."""
    new = allocator(tensor.shape, _aligned_steps(tensor.shape, axis), tensor.dtype, tensor.device)
    others = [k for k in range(tensor.dim()) if k != axis]
    narrow = (k for k in others if tensor.stride(k) == 1 and tensor.shape[k] <= MAX_WIDTH)
    across = next(narrow, None)
    if across is None or not tensor.is_cuda or tensor.dim() > OUTER_AXES + 2 or not tensor.numel():
        return lambda given: new().copy_(given)
    return _transposer(tensor, axis, across, new)


def _aligned_steps(shape: Sequence[int], axis: int) -> list[int]:
    """Strides with which the axis is contiguous, and the other axes have aligned rows in their order."""
    steps, reached = [1] * len(shape), -(-shape[axis] // ALIGNED_ELEMENTS) * ALIGNED_ELEMENTS
    for k in reversed([k for k in range(len(shape)) if k != axis]):
        steps[k], reached = reached, reached * shape[k]
    return steps


def _transposer(
    tensor: torch.Tensor, axis: int, across: int, new: Callable[[], torch.Tensor]
) -> Callable[[torch.Tensor], torch.Tensor]:
    """What copies tensors like this one on a GPU, whose axis `across` is contiguous, into new ones."""
    steps = _aligned_steps(tensor.shape, axis)
    outer = [k for k in range(tensor.dim()) if k not in (axis, across)]
    around = lambda numbers, fill: [fill] * (OUTER_AXES - len(outer)) + [numbers[k] for k in outer]
    width = triton.next_power_of_2(tensor.shape[across])
    length, along = tensor.shape[axis], ELEMENTS_OF_A_PROGRAM // width
    programs = -(-length // along) * prod(tensor.shape[k] for k in outer)
    numbers = (*around(tensor.shape, 1)[1:], *around(tensor.stride(), 0), *around(steps, 0))
    rest = (*numbers, length, tensor.shape[across], tensor.stride(axis), steps[across], along, width)
    again: list[Relaunch] = []

    def run(given: torch.Tensor) -> torch.Tensor:
        made = new()
        if again:
            again[0]([], [given.data_ptr(), made.data_ptr(), *rest])
        else:
            kernel = _transpose[(programs,)](given, made, *rest)
            again.extend([] if interprets(_transpose) else [Relaunch(kernel, programs)])
        return made

    return run


@triton.jit
def _transpose(
    source, target, second_size, third_size, first_step, second_step, third_step, first_made, second_made, third_made,
    length, width, step, made, ALONG: tl.constexpr, ACROSS: tl.constexpr,
):  # fmt: skip
    """Writes [.., length, width] as [.., width, length]; reads and writes are contiguous."""
    program = tl.program_id(0)
    tiles = tl.cdiv(length, ALONG)
    along = program % tiles * ALONG + tl.arange(0, ALONG)[:, None]
    program = program // tiles
    third, program = program % third_size, program // third_size
    second, first = (program % second_size).to(tl.int64), (program // second_size).to(tl.int64)
    across = tl.arange(0, ACROSS)[None, :]
    exists = (along < length) & (across < width)
    begin = first * first_step + second * second_step + third.to(tl.int64) * third_step
    tile = tl.load(source + begin + along.to(tl.int64) * step + across, mask=exists)
    begin = first * first_made + second * second_made + third.to(tl.int64) * third_made
    tl.store(target + begin + along + across.to(tl.int64) * made, tile, mask=exists)


def _read_along(kernel: Kernel) -> list[tuple[Term, Dim, Dim | None]]:
    """(load, dim, other): a load that reads a tile along `dim`, or as well along `other` if that is not None."""
    nodes = nodes_of(kernel)
    steps = stepped(kernel, nodes)
    columns, held = {*(loop.dim for loop in kernel.loops), *kernel.columns}, {*kernel.held}
    found: list[tuple[Term, Dim, Dim | None]] = []
    for node in (n for n in nodes if n.op == "load" and "float" in n.dtype):
        across, own, whole = node.dims & columns, {kernel.rows} & node.dims, node.dims & held
        if node.dims & steps and len(across | own) == 1:
            (dim,) = across | own
            found.append((node, dim, None))
        elif own and len(across) == 1:
            (dim,), (other,) = across, own
            found.append((node, dim, other))
        elif len(across | own) == 1 and len(whole) == 1:
            (other,), (dim,) = across | own, whole
            found.append((node, dim, other))
    return found


def _wasted_bytes(tensor: torch.Tensor, axis: int) -> int:
    """Bytes that one read of the tensor along the axis reads in vain; 0 for a contiguous axis or an expanded tensor."""
    stride = tensor.stride(axis)
    if stride == 1 or tensor.size(axis) < SECTOR_BYTES or 0 in tensor.stride():
        return 0
    times = min(SECTOR_BYTES // tensor.element_size(), abs(stride)) - 1
    return times * tensor.element_size() * prod(tensor.shape)


def _unaligned_bytes(tensor: torch.Tensor, axis: int, times: int) -> int:
    """Bytes that are read number by number in so many reads along a contiguous axis; 0 if its rows are aligned."""
    steps = [step for k, step in enumerate(tensor.stride()) if k != axis and tensor.size(k) > 1]
    if times < MIN_READS or tensor.stride(axis) != 1 or tensor.size(axis) < SECTOR_BYTES or 0 in tensor.stride():
        return 0
    size = tensor.element_size()
    return times * size * prod(tensor.shape) if any(step * size % ALIGNED_BYTES for step in steps) else 0

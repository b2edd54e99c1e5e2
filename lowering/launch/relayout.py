"""Copies inputs that tiles would read against their order in memory, so that the axis of a tile is contiguous.

Memory is read in sectors of 32 bytes. Example: a tile over i and j of a tensor [b, i, j, h] uses one number of each
sector, and every head reads all sectors again. The copy has j next to j. So it is with a tile over i and d of queries,
keys and values that are packed as [.., i, d, 3]. Rows that do not begin at multiples of 16 bytes, as those of a 49 x 49
bias, are read number by number; the rows of a copy begin at such multiples. A kernel that reads by tensor maps is plain
Triton where one tensor has none, and so that one is copied. A copy is made only where it saves much.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
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
OUTER_AXES = 3  # beside the two of a tile that is copied
MAX_WIDTH = 64  # of a tile, along the axis that is contiguous in the source
ELEMENTS_OF_A_PROGRAM = 4096
ALIGNED_BYTES = 16  # that a thread can read at once
ALIGNED_ELEMENTS = 16  # of which Triton knows that rows of them are aligned
MIN_READS = 4  # of an element, from which a copy with aligned rows costs little beside them
Axis = tuple[int, int, int]  # its size, its step in the source, its step in the copy
AxesForMaps = Mapping[str, Mapping[str, int | None]]  # see `copies_of`


@dataclass(frozen=True)
class Copy:
    """A copy of the input at `place` in which `axis` is contiguous, and how many bytes it saves."""

    place: int
    axis: int
    saved_bytes: int

    def strides(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Strides of the copy of a tensor of this shape: the axis is contiguous, and the others have aligned rows in
        their order."""
        steps, reached = [1] * len(shape), -(-shape[self.axis] // ALIGNED_ELEMENTS) * ALIGNED_ELEMENTS
        for k in reversed([k for k in range(len(shape)) if k != self.axis]):
            steps[k], reached = reached, reached * shape[k]
        return tuple(steps)

    def __str__(self) -> str:
        return f"as it lies {self.saved_bytes / 2**20:.0f} MiB would be read in vain, or number by number"


def copies_of(
    plan: Plan,
    names: Sequence[str],
    tensors: Sequence[torch.Tensor],
    sizes: Mapping[str, int] | None = None,
    by_maps: AxesForMaps | None = None,
) -> tuple[Copy, ...]:
    """The copies to make before the plan's kernels read these tensors. sizes: values of symbolic sizes.

    by_maps: by kernel, the inputs that it reads by tensor maps where all of these suit one: None for one that does,
    else the axis that has to be contiguous in a copy.
    """
    inputs = dict(zip(names, tensors))
    reads = _reads_by_axis(plan, inputs, sizes or {})
    for_maps = _saved_by_maps(plan, inputs, sizes or {}, by_maps or {})
    found = []
    for place, (name, tensor) in enumerate(zip(names, tensors)):
        axes = reads.get(name, {})
        if name in for_maps:
            found.append(Copy(place, *for_maps[name]))
        elif len(axes) == 1 and None not in axes:  # all reads agree on one axis
            ((axis, times),) = axes.items()
            saved = times * _wasted_bytes(tensor, axis) or _unaligned_bytes(tensor, axis, times)
            if saved >= MIN_WASTED_BYTES:
                found.append(Copy(place, axis, saved))
    return tuple(found)


def _saved_by_maps(
    plan: Plan, inputs: Mapping[str, torch.Tensor], sizes: Mapping[str, int], by_maps: AxesForMaps
) -> dict[str, tuple[int, int]]:
    """(axis of the copy, bytes that are read without tensor maps because this input has none): all that its kernels
    read by maps."""
    found: dict[str, tuple[int, int]] = {}
    for kernel in plan.kernels:
        axes = by_maps.get(kernel.name, {})
        loads = {n for n in nodes_of(kernel) if n.op == "load" and n.attrs[0].name in axes}
        bytes_of = lambda name: inputs[name].numel() * inputs[name].element_size()
        read = sum(_read_count(kernel, n, sizes) * bytes_of(n.attrs[0].name) for n in loads)
        lacking = {name: axis for name, axis in axes.items() if axis is not None}
        if read >= max(MIN_WASTED_BYTES, MIN_READS * sum(map(bytes_of, lacking))):
            found |= {name: (axis, read // len(lacking)) for name, axis in lacking.items()}
    return found


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
    ready = [(copy.place, _copier(tensors[copy.place], copy)) for copy in copies]

    def run(given: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        found = list(given)
        for place, copied in ready:
            found[place] = copied(found[place])
        return found

    return on_device(tensors[0].device, run) if ready else list


def _copier(tensor: torch.Tensor, copy: Copy) -> Callable[[torch.Tensor], torch.Tensor]:
    """What copies tensors like this one."""
    steps = copy.strides(tensor.shape)
    new = allocator(tensor.shape, steps, tensor.dtype, tensor.device)
    axes = _merged([*zip(tensor.shape, tensor.stride(), steps)])
    if not tensor.is_cuda or not tensor.numel() or len(axes) > OUTER_AXES + 2:
        return lambda given: new().copy_(given)
    return _copying_tiles(axes, new)


def _merged(axes: Iterable[Axis]) -> list[Axis]:
    """The axes in the order of the copy, the contiguous one last; two that are one run in both tensors are one.

    Those of one element are left out. Example: heads and elements of x[..., 0], which lies as [heads, elements, 3].
    """
    found: list[Axis] = []
    for size, step, made in sorted((a for a in axes if a[0] > 1), key=lambda a: -a[2]):
        if found and found[-1][1:] == (size * step, size * made):
            size *= found.pop()[0]
        found.append((size, step, made))
    return found or [(1, 1, 1)]


def _copying_tiles(axes: list[Axis], new: Callable[[], torch.Tensor]) -> Callable[[torch.Tensor], torch.Tensor]:
    """What copies tensors with these axes on a GPU into new ones: tiles of the axis that is contiguous in the copy and
    of the one that is closest in the source, or of the next one."""
    *others, (length, step, made) = axes
    closest = min(others, key=lambda a: a[1], default=None)
    turns = closest is not None and closest[1] < step
    second = closest if turns else others[-1] if others else (1, 0, 0)
    outer = [a for a in others if a is not second]
    around = lambda column, fill: [fill] * (OUTER_AXES - len(outer)) + [a[column] for a in outer]
    beside = min(triton.next_power_of_2(second[0]), MAX_WIDTH) if turns else 1
    along = min(triton.next_power_of_2(length), ELEMENTS_OF_A_PROGRAM // beside)
    beside = min(triton.next_power_of_2(second[0]), ELEMENTS_OF_A_PROGRAM // along)
    programs = -(-length // along) * -(-second[0] // beside) * prod(a[0] for a in outer)
    numbers = (*around(0, 1)[1:], *around(1, 0), *around(2, 0), length, step, made, *second)
    shape = (step if step < ALIGNED_ELEMENTS else 0, beside, along)
    again: list[Relaunch] = []

    def run(given: torch.Tensor) -> torch.Tensor:
        copy = new()
        if again:
            again[0]([], [given.data_ptr(), copy.data_ptr(), *numbers, *shape])
        else:
            kernel = _copy_tiles[(programs,)](given, copy, *numbers, *shape)
            again.extend([] if interprets(_copy_tiles) else [Relaunch(kernel, programs)])
        return copy

    return run


@triton.jit
def _copy_tiles(
    source, target, second_size, third_size, first_step, second_step, third_step, first_made, second_made, third_made,
    length, step, made, width, across_step, across_made, STEP: tl.constexpr, BESIDE: tl.constexpr, ALONG: tl.constexpr,
):  # fmt: skip
    """Copies [.., width, length] from one place to another with other steps; the last axis is contiguous there.

    STEP: the step if it is short, else 0. Triton then knows how many numbers it may read at once.
    """
    program = tl.program_id(0)
    tiles, bands = tl.cdiv(length, ALONG), tl.cdiv(width, BESIDE)
    along = (program % tiles * ALONG + tl.arange(0, ALONG)[None, :]).to(tl.int64)
    program = program // tiles
    across = (program % bands * BESIDE + tl.arange(0, BESIDE)[:, None]).to(tl.int64)
    program = program // bands
    third, program = program % third_size, program // third_size
    second, first = (program % second_size).to(tl.int64), (program // second_size).to(tl.int64)
    exists = (along < length) & (across < width)
    begin = first * first_step + second * second_step + third.to(tl.int64) * third_step
    tile = tl.load(source + begin + across * across_step + along * (STEP if STEP else step), mask=exists)
    begin = first * first_made + second * second_made + third.to(tl.int64) * third_made
    tl.store(target + begin + across * across_made + along * made, tile, mask=exists)


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

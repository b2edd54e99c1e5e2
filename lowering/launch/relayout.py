"""Tensors that tiles would read across the run of their memory: copied first, with another axis next to next.

A pair of a row and a column reads 32 bytes for its one number of [b, i, j, h], once for each head; a fold that goes
place by place along a row's own memory touches as many lines as there are rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import torch
import triton
import triton.language as tl

from ...egraph.terms.sizes import resolve
from ...egraph.terms.term import Dim, Term
from ...egraph.terms.traversal import subterms
from ..analysis.dim_roles import stepped
from ..plan.queries import roots
from ..plan.records import Kernel, Plan

SECTOR = 32  # bytes that memory gives at a time
ROWS = 64  # of a tile
WASTED = 2**24  # bytes read in vain, from which on a copy costs less
OUTER, WIDEST, TURNED = 3, 128, 4096  # axes beside the two that change places; places of the one; elements of a program


@dataclass(frozen=True)
class Copy:
    """The tensor at `place` with places of `axis` next to each other in memory, and how many bytes that spares."""

    place: int
    axis: int
    spared: int

    def __str__(self) -> str:
        return f"as it lies {self.spared / 2**20:.0f} MiB would be read in vain"


def copies_of(
    plan: Plan, names: Sequence[str], tensors: Sequence[torch.Tensor], sizes: Mapping[str, int] | None = None
) -> tuple[Copy, ...]:
    """What is to be copied before the plan's kernels read these tensors; sizes: of symbolic ones."""
    wanted: dict[str, dict[int, int]] = {}
    given = dict(zip(names, tensors))
    for kernel in plan.kernels:
        for node, dim, other in _read_along(kernel):
            axis, second = (_axis(node, d) for d in (dim, other))
            read = given.get(node.attrs[0].name)  # none of what another kernel stores
            if read is not None and (second is None or read.stride(second) != 1):
                times = wanted.setdefault(node.attrs[0].name, {})
                times[axis] = times.get(axis, 0) + _times(kernel, node, sizes or {})
    found = []
    for place, (name, tensor) in enumerate(zip(names, tensors)):
        if len(axes := wanted.get(name, {})) == 1 and None not in axes:
            ((axis, count),) = axes.items()
            if (spared := count * _wasted(tensor, axis)) >= WASTED:
                found.append(Copy(place, axis, spared))
    return tuple(found)


def _axis(node: Term, dim: Dim | None) -> int | None:
    """The axis that the dim alone counts."""
    axes = [k for k, index in enumerate(node.args) if dim in index.dims]
    return axes[0] if len(axes) == 1 and node.args[axes[0]].op == "iota" else None


def _times(kernel: Kernel, node: Term, sizes: Mapping[str, int]) -> int:
    """How often the kernel's programs read each element."""
    length = lambda d: resolve(d.size, sizes)
    tiles = -(-length(kernel.rows) // ROWS) if kernel.rows is not None and kernel.rows not in node.dims else 1
    return tiles * prod(length(d) for d in kernel.grid if d not in node.dims)


def relaid(tensors: Sequence[torch.Tensor], copies: Sequence[Copy]) -> list[torch.Tensor]:
    """The tensors with copies for those that have one."""
    tensors = list(tensors)
    for copy in copies:
        tensors[copy.place] = _turned(tensors[copy.place], copy.axis)
    return tensors


def _turned(tensor: torch.Tensor, axis: int) -> torch.Tensor:
    """The tensor with places of the axis next to each other."""
    given = tensor.movedim(axis, -1)
    across = next((k for k, step in enumerate(given.stride()[:-1]) if step == 1 and given.shape[k] <= WIDEST), None)
    if across is None or not tensor.is_cuda or tensor.dim() > OUTER + 2 or not tensor.numel():
        return given.contiguous().movedim(-1, axis)
    made = torch.empty(given.shape, dtype=tensor.dtype, device=tensor.device)
    outer = [k for k in range(given.dim() - 1) if k != across]
    around = lambda numbers, fill: [fill] * (OUTER - len(outer)) + [numbers[k] for k in outer]
    width = triton.next_power_of_2(given.shape[across])
    length, along = given.shape[-1], TURNED // width
    programs = -(-length // along) * prod(given.shape[k] for k in outer)
    numbers = (*around(given.shape, 1)[1:], *around(given.stride(), 0), *around(made.stride(), 0))
    last = (length, given.shape[across], given.stride(-1), made.stride(across))
    _turn[(programs,)](given, made, *numbers, *last, ALONG=along, ACROSS=width)
    return made.movedim(-1, axis)


@triton.jit
def _turn(
    source, target, second_size, third_size, first_step, second_step, third_step, first_made, second_made, third_made,
    length, width, step, made, ALONG: tl.constexpr, ACROSS: tl.constexpr,
):  # fmt: skip
    """What lies [.., length, width] is written [.., width, length]: whole runs of both are read and written."""
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
    """Loads, the dim of a tile whose places next to each other they read, and one by which they could as well."""
    nodes = {n for root in roots(kernel) for n in subterms(root)}
    steps = stepped(kernel, nodes)
    columns = {*(loop.dim for loop in kernel.loops), *kernel.columns}
    found: list[tuple[Term, Dim, Dim | None]] = []
    for node in (n for n in nodes if n.op == "load" and "float" in n.dtype):
        across, own = node.dims & columns, {kernel.rows} & node.dims
        if node.dims & steps and len(across | own) == 1:
            (dim,) = across | own
            found.append((node, dim, None))
        elif own and len(across) == 1:
            (dim,), (other,) = across, own
            found.append((node, dim, other))
    return found


def _wasted(tensor: torch.Tensor, axis: int) -> int:
    """Bytes that one reading of it reads for nothing where the axis is no run; nothing of what repeats itself."""
    apart = tensor.stride(axis)
    if apart == 1 or tensor.size(axis) < SECTOR or 0 in tensor.stride():
        return 0
    times = min(SECTOR // tensor.element_size(), abs(apart)) - 1
    return times * tensor.element_size() * prod(tensor.shape)

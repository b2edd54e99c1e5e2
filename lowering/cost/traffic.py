"""Bytes that one launch of a kernel moves, tensor by tensor: from memory, and from the caches to the programs.

A program reads what its tiles need once, what a loop streams at every step that runs. Programs that run together read
from the L2 what another of them has read, as long as that fits. Example: with 64 rows a tile, keys of length 4096 come
from memory once and go to 64 programs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import ceil, prod

import torch

from ...egraph.forks import cached_property
from ...egraph.terms.sizes import resolve
from ...egraph.terms.term import Dim, Tensor, Term
from ..analysis.read_places import places_read
from ..plan.device import Gpu
from ..plan.queries import states_of
from ..plan.records import Kernel, Loop

Sizes = Mapping[str, int]


@dataclass(frozen=True)
class ProgramTiles:
    """How a kernel's programs share out its work.

    rows, columns: places of a tile. steps: of each loop, all programs together. programs: how many there are; together:
    how many run at a time.
    """

    kernel: Kernel
    sizes: Sizes
    rows: int
    columns: int
    steps: tuple[int, ...]
    programs: int
    together: int

    def extent(self, dim: Dim) -> int:
        """Places of a dim that a program has at a time."""
        if dim in self._single:
            return 1
        size = resolve(dim.size, self.sizes)
        if dim == self.kernel.rows:
            return min(self.rows, size)
        return min(self.columns, size) if dim in self._columns else size

    @cached_property
    def _single(self) -> set[Dim]:
        """Dims of which a program has one place at a time."""
        return {*self.kernel.grid, *self.kernel.around}

    @cached_property
    def _columns(self) -> set[Dim]:
        return {*self.kernel.columns, *(loop.dim for loop in self.kernel.loops)}

    def length(self, dim: Dim) -> int:
        """All places of a dim."""
        return resolve(dim.size, self.sizes)


@dataclass(frozen=True)
class Traffic:
    """Bytes of one tensor: its elements that are needed, each once; from or to memory; from or to programs."""

    tensor: str
    distinct: float
    memory: float
    programs: float


def traffic(launch: ProgramTiles, gpu: Gpu) -> list[Traffic]:
    """What a launch reads and writes."""
    read: dict[str, list[Traffic]] = {}
    for load, times, loop in _reads(launch):
        found = _read(launch, load, times, loop, gpu)
        read.setdefault(found.tensor, []).append(found)
    return [_together(rows) for rows in read.values()] + list(_written(launch))


def _together(rows: list[Traffic]) -> Traffic:
    """Loads of one tensor: its elements come from memory once for all of them, but each load takes them from there."""
    most = max(rows, key=lambda one: one.memory)
    return Traffic(most.tensor, most.distinct, most.memory, sum(one.programs for one in rows))


def _reads(launch: ProgramTiles) -> Iterable[tuple[Term, float, Loop | None]]:
    """(load, how often a program's tile of it is read by all programs, the loop that streams it)."""
    done = set()
    states = states_of(launch.kernel)
    for loop, steps, roots in _phases(launch):
        for load in loads(roots, states):
            streamed = loop is not None and bool({loop.dim, *loop.outer} & load.dims)
            key = load, loop if streamed else None
            if key not in done:
                done.add(key)
                yield load, steps if streamed else launch.programs, key[1]


def _phases(launch: ProgramTiles) -> Iterable[tuple[Loop | None, int, list[Term]]]:
    """(loop, its steps, what it evaluates); behind all loops the first is None."""
    kernel = launch.kernel
    for loop, steps in zip(kernel.loops, launch.steps, strict=True):
        roots = [term for a in loop.accumulators for term in (a.gauge, *a.values) if term is not None]
        roots += [] if loop.guard is None or loop.limits_only else [loop.guard]
        yield loop, steps, [*roots, *(store.term for store in kernel.written_by(loop))]
    yield None, 0, [store.term for store in kernel.written_by(None)]


def loads(roots: Iterable[Term], states: set[Term]) -> list[Term]:
    """Loads in the roots, but for those behind finished states."""
    found: dict[Term, None] = {}
    for root in roots:
        stack = [root]
        seen: set[Term] = set()
        while stack:
            node = stack.pop()
            if node in seen or (node in states and node is not root):
                continue
            seen.add(node)
            if node.op == "load":
                found[node] = None
            stack += node.args
    return list(found)


def _read(launch: ProgramTiles, load: Term, times: float, loop: Loop | None, gpu: Gpu) -> Traffic:
    tensor: Tensor = load.attrs[0]
    size = bytes_of(tensor)
    distinct = size * places_read(load, launch.length)
    moved = max(distinct, times * size * places_read(load, launch.extent))
    return Traffic(tensor.name, distinct, _from_memory(launch, load, loop, distinct, moved, gpu), moved)


def _from_memory(launch: ProgramTiles, load: Term, loop: Loop | None, distinct: float, moved: float, gpu: Gpu) -> float:
    """Bytes that come from memory: once for all programs that run together, if their grid points' share fits the L2."""
    apart = {*load.dims} | ({loop.part} if loop is not None and loop.part is not None else set())
    points = max(1, prod(launch.length(d) for d in launch.kernel.grid if d in apart))
    each, sharing = distinct / points, max(1, launch.programs // points)  # sharing: programs that read the same
    at_a_time = ceil(min(launch.together, launch.programs) / sharing)
    if each * at_a_time <= gpu.cache_bytes:
        return distinct
    return min(moved, distinct * max(1.0, sharing / launch.together))


def _written(launch: ProgramTiles) -> Iterable[Traffic]:
    """A store writes its tensor once; one that adds goes there and back for every program."""
    for store in launch.kernel.stores:
        size = bytes_of(store.output) * prod(resolve(n, launch.sizes) for n in store.output.shape)
        times = max(1, launch.programs // max(1, prod(map(launch.length, launch.kernel.grid)))) if store.adds else 1
        yield Traffic(store.output.name, size, size * (2 if store.adds else 1), size * times)


def bytes_of(tensor: Tensor) -> int:
    """Bytes of one element."""
    return getattr(torch, tensor.dtype).itemsize

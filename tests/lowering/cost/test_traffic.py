"""Bytes of a launch are those that enumeration finds: programs, steps and places one by one."""

from dataclasses import replace
from math import ceil

import numpy as np
import pytest

from bench.measured import Problem, kernel_of
from onepass.egraph.terms.evaluate import evaluate
from onepass.egraph.terms.traversal import subterms
from onepass.lowering.cost.traffic import ProgramTiles, bytes_of, traffic
from onepass.lowering.plan.device import H200
from onepass.lowering.plan.kernel_config import TritonConfig
from onepass.lowering.schedule.kernel_time import steps

ROWS, COLUMNS = 16, 32
VARIANTS = ("full", "causal", "window", "softcap", "alibi")


def launch_of(kernel, together: int = 132) -> ProgramTiles:
    config, grid = TritonConfig(ROWS, COLUMNS, 4, 2), np.prod([d.size for d in kernel.grid], dtype=int)
    taken = tuple(int(grid * steps(kernel, loop, config).sum()) for loop in kernel.loops)
    return ProgramTiles(kernel, {}, ROWS, COLUMNS, taken, int(grid) * ceil(kernel.rows.size / ROWS), together)


def enumerated(kernel) -> dict[str, int]:
    """Bytes that programs read of each tensor, tile by tile: those of a step that keeps anything, of a program."""
    (loop,), found = kernel.loops, {}
    loads = {n for s in kernel.stores for n in subterms(s.term) if n.op == "load"}
    kept = np.ones((kernel.rows.size, loop.dim.size), dtype=bool)
    if loop.guard is not None:
        kept = np.broadcast_to(evaluate(loop.guard, {}, [kernel.rows, loop.dim], {}), kept.shape)
    for load in loads:
        places = 0
        for first in range(0, kernel.rows.size, ROWS):
            rows = slice(first, first + ROWS)
            tiles = [slice(n, n + COLUMNS) for n in range(0, loop.dim.size, COLUMNS)]
            runs = [tile for tile in tiles if kept[rows, tile].any()] if loop.dim in load.dims else [slice(None)]
            for tile in runs:
                places += _distinct(load, {kernel.rows: rows, loop.dim: tile}, kernel.grid)
        grid = int(np.prod([d.size for d in kernel.grid]))
        found[load.attrs[0].name] = found.get(load.attrs[0].name, 0) + places * grid * bytes_of(load.attrs[0])
    return found


def _distinct(load, tiles, grid) -> int:
    dims = [d for d in sorted(load.dims, key=str) if d not in grid]
    at = tuple(tiles.get(d, slice(None)) for d in dims)
    known = {d: 0 for d in grid}
    index = [x for x in load.args if not x.dims & set(known)]
    places = [np.broadcast_to(evaluate(x, {}, dims, {}), [d.size for d in dims])[at].ravel().tolist() for x in index]
    return len(set(zip(*places, strict=True))) if places else 1


@pytest.mark.parametrize("variant", VARIANTS)
def test_programs_read_what_enumeration_finds(variant):
    kernel = kernel_of(Problem(variant, 2, 2, 128, 16))
    found = {one.tensor: one.programs for one in traffic(launch_of(kernel), H200)}
    written = {s.output.name for s in kernel.stores}
    assert {name: n for name, n in found.items() if name not in written} == enumerated(kernel)


def test_each_tensor_comes_from_memory_once_where_it_fits_the_cache():
    kernel = kernel_of(Problem("full", 2, 2, 128, 16))
    found = {one.tensor: one for one in traffic(launch_of(kernel), H200)}
    assert {one.memory for one in found.values()} == {2 * 2 * 128 * 16 * 2}
    assert all(one.distinct == one.memory <= one.programs for one in found.values())


def test_what_does_not_fit_the_cache_comes_again_for_each_wave():
    kernel = kernel_of(Problem("full", 1, 1, 512, 16))
    small = replace(H200, cache_bytes=1024)
    found = {one.tensor: one for one in traffic(launch_of(kernel, together=8), small)}
    assert found["k"].memory == 4 * found["k"].distinct  # 32 programs, 8 at a time
    assert found["q"].memory == found["q"].distinct

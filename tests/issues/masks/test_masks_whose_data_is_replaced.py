"""`mask.data = another` counts no version, and the memory of an earlier mask may come back: a map of that one was
followed. Memory is known by its storage now, which a map keeps from being another's."""

import gc

import pytest
import torch

from onepass.lowering.masks.block_map import MapCache
from onepass.lowering.triton import launch
from onepass.lowering.triton.launch import build_map
from tests.lowering.masks.test_block_map import DEVICE, data, documents, tiling_of

COLUMNS = 32


def band(begin):
    ids = torch.zeros_like(data(COLUMNS, COLUMNS)[0]["ids"])
    ids[:, begin : begin + 8] = 1
    return ids


def listed(lists):
    """What is visited by every tile of rows: entries behind a list's end are not written."""
    return [row[: 2 + row[1]] for row in lists.flatten(0, -2).tolist()]


@pytest.mark.slow
@pytest.mark.parametrize("kept", [0, 1, 3])
def test_every_replaced_mask_is_read(kept):
    """kept: how many of the masks before stay alive, so that memory comes back sooner or later."""
    cache, mask, others = MapCache(), band(0).to(DEVICE), []
    for begin in [0, 8, 16, 24, 0, 16] * 4:
        others = [*others, mask.data][-kept:] if kept else []
        mask.data = band(begin).to(DEVICE)
        (found,) = cache.get(tiling_of(documents), {"ids": mask}, build_map)
        (wanted,) = build_map(tiling_of(documents), {"ids": mask})
        assert listed(found) == listed(wanted)


def test_an_unchanged_mask_is_read_once_still(monkeypatch):
    builds = []
    monkeypatch.setattr(launch, "build_map", lambda *args: builds.append(args) or build_map(*args))
    cache, mask = MapCache(), band(8).to(DEVICE)
    for _ in range(3):
        cache.get(tiling_of(documents), {"ids": mask}, launch.build_map)
    assert len(builds) == 1


def test_maps_of_memory_that_is_gone_are_dropped():
    cache, mask = MapCache(), band(0).to(DEVICE)
    for begin in (0, 8, 16):
        mask.data = band(begin).to(DEVICE)
        gc.collect(1)  # Triton's interpreter leaves cycles that hold what a kernel read
        cache.get(tiling_of(documents), {"ids": mask}, build_map)
    assert len(cache._kept) == 1

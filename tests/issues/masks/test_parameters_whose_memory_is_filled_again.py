"""FSDP2 frees a parameter's memory and fills it again without a new version: a block map of it stayed as it was."""

import pytest
import torch
from torch.autograd import _unsafe_preserve_version_counter

from onepass.lowering.masks.block_map import MapCache
from onepass.lowering.triton.launch import build_map
from tests.issues.masks.test_masks_whose_data_is_replaced import band, listed
from tests.lowering.masks.test_block_map import DEVICE, documents, tiling_of


def refill(parameter, values):
    """What FSDP2 does around a forward: it frees the memory, and fills it with what the other ranks have."""
    storage = parameter.untyped_storage()
    size = storage.nbytes()
    storage.resize_(0)
    storage.resize_(size)
    with torch.no_grad(), _unsafe_preserve_version_counter(parameter):
        parameter.copy_(values)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("view", [False, True])
def test_a_parameter_is_read_each_time(view):
    cache = MapCache()
    whole = torch.nn.Parameter(band(0).to(DEVICE), requires_grad=False)
    version = whole._version
    for begin in (0, 8, 16, 24):
        refill(whole, band(begin))
        given = {"ids": whole[:] if view else whole}
        assert given["ids"]._version == version
        (found,) = cache.get(tiling_of(documents), given, build_map)
        (wanted,) = build_map(tiling_of(documents), given)
        assert listed(found) == listed(wanted)


def test_no_map_of_a_parameter_is_kept():
    cache = MapCache()
    cache.get(tiling_of(documents), {"ids": torch.nn.Parameter(band(0).to(DEVICE), requires_grad=False)}, build_map)
    assert not cache._kept

"""Tiles of 32 by 16 were classed 32 x 16 of them at a time, 262144 elements of a guard in one program: a dense mask
beside arithmetic of its places took minutes to compile, and a first call seemed to hang."""

from math import prod

import pytest
import torch

from onepass.egraph.terms.ops import eq, iota, load, logical_and, logical_not
from onepass.egraph.terms.term import Dim, Tensor
from onepass.lowering.masks.block_map import EMPTY, FULL, PARTIAL, Tiling
from onepass.lowering.plan.records import BlockMap
from onepass.lowering.triton.launch import CLASSED, _classifier
from tests.lowering.masks.test_block_map import DEVICE

ROWS = COLUMNS = 626


def tiling_of(row_tile, tile):
    i, j = Dim("i", ROWS), Dim("j", COLUMNS)
    mask = load(Tensor("mask", "bool", (ROWS, COLUMNS)), iota(i), iota(j))
    third = eq((iota(i) - iota(j)) % 3, 0)
    return Tiling(BlockMap(logical_not(logical_and(third, mask)), j, (), (i,)), row_tile, tile, ())


@pytest.mark.parametrize("row_tile,tile", [(32, 16), (16, 16), (64, 16), (16, 64), (64, 64), (1, 1024), (128, 128)])
def test_a_program_classes_no_more_elements_than_it_should(row_tile, tile):
    launcher, sizes = _classifier(tiling_of(row_tile, tile))
    (kernel,) = launcher.plan.kernels
    config = launcher.config(kernel, sizes, torch.device("cpu"))
    tiles = [config.row_tile] + [config.loop_tile] * len(kernel.columns)
    assert prod(tiles) * row_tile * tile <= max(CLASSED, row_tile * tile)
    assert kernel.columns or config.loop_tile == 1


@pytest.mark.sampled(1)
@pytest.mark.parametrize("row_tile,tile", [(32, 16), (16, 64)])
def test_the_classes_are_right(row_tile, tile):
    mask = torch.rand(ROWS, COLUMNS, generator=torch.Generator().manual_seed(0)) < 0.5
    mask[64:160] = True
    mask[:, 160:256] = False
    place = torch.arange(ROWS)
    kept = ~(((place[:, None] - place) % 3 == 0) & mask)
    launcher, sizes = _classifier(tiling_of(row_tile, tile))
    classes = launcher({"mask": mask.to(DEVICE)}, sizes).cpu()
    for n, blocks in enumerate(classes.tolist()):
        for m, found in enumerate(blocks):
            part = kept[row_tile * n : row_tile * (n + 1), tile * m : tile * (m + 1)]
            whole = bool(part.all()) and part.shape[1] == tile
            assert found == (FULL if whole else PARTIAL if part.any() else EMPTY)

"""Weights that are normalised over queries, at lengths whose held rows no tile has room for: tiles of a plan that was
only tried had 0 rows, "negative shift count", and the region was lost. Now the least tile is tried.
"""

import pytest
import torch

import onepass
from onepass.lowering.triton.default_config import cube_config

pytestmark = pytest.mark.usefixtures("fresh")


def by_key_mass(q, k, v):
    p = (q @ k.mT / 8).softmax(-1)
    return (p / p.sum(-2, keepdim=True)) @ v


def sinkhorn(q, k, v):
    p = (q @ k.mT / 8).softmax(-1)
    p = p / p.sum(-2, keepdim=True)
    return (p / p.sum(-1, keepdim=True)) @ v


@pytest.mark.parametrize("lead, carried, width", [(16, 1, 4096), (64, 4096, 2048), (1, 1, 16)])
def test_a_tile_has_rows(lead, carried, width):
    assert cube_config(lead, carried, width).row_tile >= 16


@pytest.mark.parametrize(
    "function, length, dtype", [(by_key_mass, 777, torch.float32), (sinkhorn, 512, torch.bfloat16)]
)
def test_the_region_is_fused_and_right(function, length, dtype):
    torch.manual_seed(0)
    given = [torch.randn(1, 2, length, 64).to(dtype) for _ in range(3)]
    options = {"inner": "eager", "executor": "tiled", "strict": True}
    run = torch.compile(function, backend=onepass.onepass_backend, options=options)
    exact = function(*(x.double() for x in given))
    with torch.no_grad():
        found, eager = run(*given).double(), function(*given).double()
    assert len(onepass.reports()[-1].regions) == 1
    allowed = 4 * (eager - exact).abs().max() + 1e-6
    assert (found - exact).abs().max() <= allowed

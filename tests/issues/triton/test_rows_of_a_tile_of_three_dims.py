"""Distances of points beside values 96 wide gave a tile 21 rows, which no compiler takes."""

import os

import pytest
import torch

from onepass.compiler.optimize import optimize_all
from onepass.graph.trace import program_of
from onepass.lowering.triton.default_config import cube_config, default_for
from onepass.lowering.triton.launch import Launcher
from onepass.translate.translate import translate


def points(v, x, y, w):
    apart = (x[:, :, None] - y[:, None]).square().sum(-1).sqrt().sum(-1).permute(0, 3, 1, 2)
    weights = torch.softmax(-0.3 * apart, -1)
    return torch.einsum("bhij,bjhe->bihe", weights, v), torch.einsum("bhij,bhjnc->bihnc", weights, w)


def _inputs():
    torch.manual_seed(0)
    shapes = (1, 40, 1, 96), (1, 40, 1, 17, 2), (1, 40, 1, 17, 2), (1, 1, 40, 17, 2)
    return [torch.randn(shape) for shape in shapes]


@pytest.mark.parametrize("width", [16, 24, 64, 80, 96, 192, 256])
def test_rows_are_a_power_of_two(width):
    for lead in (1, 2, 4, 8, 16, 32):
        for carried in (1, 2, 16, 128, 512):
            rows = cube_config(lead, carried, width).row_tile
            assert rows >= 16 and rows & (rows - 1) == 0


@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="needs Triton's interpreter")
def test_it_computes_the_same():
    inputs = _inputs()
    plan = optimize_all(translate(program_of(points, *inputs)).results).plan
    named = dict(zip("vxyw", inputs, strict=True))
    given = [named[x.name] for x in plan.inputs]
    configs = {kernel.name: default_for(kernel, "sm_90") for kernel in plan.kernels}
    found = Launcher(plan, configs).bind([x.name for x in plan.inputs], given, {})(given)
    for mine, exact in zip(found, points(*(x.double() for x in inputs)), strict=True):
        torch.testing.assert_close(mine.double(), exact, atol=2e-5, rtol=2e-5)

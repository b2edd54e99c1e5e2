"""A tile of 32 rows and 96 columns was given to three warps, which Triton does not take: the original calls ran."""

import pytest

from onepass.lowering.plan.kernel_config import TritonConfig
from onepass.lowering.plan.records import Store
from onepass.lowering.planning.planner import plan_stores
from onepass.lowering.triton.default_config import cut_to_sizes
from onepass.lowering.triton.launch import Launcher
from tests.lowering.triton.test_kernel import DEVICE, attention, inputs_of

WIDTHS = [16, 48, 80, 96]


@pytest.mark.parametrize("width", WIDTHS)
def test_warps_are_a_power_of_two(width):
    (kernel,) = plan_stores([Store(*attention(40, 9, width=width))]).kernels
    warps = cut_to_sizes(TritonConfig(32, 64, 4, 2), kernel, {}).warps
    assert warps in (1, 2, 4)


@pytest.mark.parametrize("width", WIDTHS)
def test_the_kernel_runs(width):
    plan = plan_stores([Store(*attention(40, 9, width=width))])
    tensors = {name: x.to(DEVICE) for name, x in inputs_of(plan, {}).items()}
    q, k, v = (tensors[name].double() for name in "qkv")
    exact = (q @ k.mT / width**0.5).softmax(-1) @ v
    assert (Launcher(plan)(tensors).double() - exact).abs().max() < 1e-4

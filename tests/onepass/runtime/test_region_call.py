"""The kind of a call: its sizes, the metadata of its results, and the sizes at which no plan runs."""

import pytest
import torch

from onepass.compiler import compiled_region
from onepass.compiler.options import Options
from onepass.graph.trace import program_of
from onepass.runtime.region_call import NO_SIZES, RegionCall, all_sizes, call_of, unfit

pytestmark = pytest.mark.usefixtures("fresh")


def attention(q, k, v):
    return torch.softmax(q @ k.mT, -1) @ v


def made(length=40):
    tensors = [torch.randn(1, 2, length, 16) for _ in range(3)]
    return compiled_region.make(program_of(attention, *tensors), Options(executor="tiled")), tensors


def test_the_kind_of_a_call_has_sizes_and_results():
    found, tensors = made()
    call = call_of(found, tensors, ())
    assert call == RegionCall({}, ((torch.float32, (1, 2, 40, 16), None),))
    assert all_sizes(found, tensors, ()) == {} and unfit(found, call) == ""


@pytest.mark.parametrize("length, reason", [(-1, NO_SIZES), (0, ""), (1, "")])
def test_a_negative_number_is_no_size(length, reason):
    """0 is one as long as no length of the plan is that symbol."""
    found, _ = made()
    assert unfit(found, RegionCall({"s0": length}, ())) == reason

"""A report said that attention of 8 heads of 1024 rows moves 384 MiB as written; it moves 200.

Facts that fake tensors are asked for (prim.device) and views without a check counted as calls that read and write.
"""

import pytest
import torch

import onepass

pytestmark = pytest.mark.usefixtures("fresh")
HEADS, ROWS, WIDTH = 8, 1024, 64
OPERAND, SCORES = 4 * HEADS * ROWS * WIDTH, 4 * HEADS * ROWS * ROWS
PRODUCT = 2 * OPERAND + SCORES  # two operands and scores, whichever is written


def plain(q, k, v):
    return torch.softmax(q @ k.mT, -1) @ v


def scaled(q, k, v):
    return torch.softmax(q @ k.mT / 8, -1) @ v


@pytest.mark.parametrize("function, calls", [(plain, 3), (scaled, 4)])
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_each_call_reads_and_writes_its_tensors_once(function, calls, device):
    inputs = [torch.randn(1, HEADS, ROWS, WIDTH, device=device) for _ in range(3)]
    (region,) = onepass.explain(function, *inputs).regions
    assert region.data.calls == calls
    assert region.bytes[0] == 2 * PRODUCT + (calls - 2) * 2 * SCORES

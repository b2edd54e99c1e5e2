"""Keys cut at half of a symbolic length have the size (s + 1)//2, for which launches looked instead of computing it."""

import pytest
import torch

import onepass
from onepass.api.backend import onepass_backend


def attend(q, past, values):
    k, v = past[:, :, : (past.shape[2] + 1) // 2], values[:, :, : (past.shape[2] + 1) // 2]
    return torch.softmax(q @ k.mT, -1) @ v


@pytest.mark.slow
@pytest.mark.parametrize("length", [6, 9])
def test_it_is_fused_without_a_note_and_right(length):
    torch._dynamo.reset()  # the report is of this graph
    given = torch.randn(2, 2, 3, 8), torch.randn(2, 2, length, 8), torch.randn(2, 2, length, 8)
    options = {"inner": "eager", "executor": "triton"}
    run = torch.compile(attend, backend=onepass_backend, options=options, dynamic=True)
    torch.testing.assert_close(run(*given), attend(*given), rtol=1e-5, atol=1e-5)
    (region,) = onepass.reports()[-1].regions
    assert not region.notes

"""Queries and heads as rows of one tile store two axes of the result as one, and asked for strides that cannot be one.

A model's attention hands its result on as [batch, queries, heads, width], so the strides that were asked for are those
of a transposed result: the launch failed with torch's "view size is not compatible", and slower code ran instead.
The kernel writes contiguous memory now, which is copied. Found by `tests.fuzz --device cuda --seed 71000`.
"""

import pytest
import torch

import onepass
from onepass.api.backend import onepass_backend

pytestmark = pytest.mark.usefixtures("fresh")


def decode(q, k, v, bias):
    """q [B, heads, queries, width], keys and values by groups of heads, all as [B, queries, heads, width] in memory."""
    k, v = k.repeat_interleave(2, -3), v.repeat_interleave(2, -3)
    q, k, v = (x.transpose(-3, -2).contiguous().transpose(-3, -2) for x in (q * 0.3, k, v))
    return ((q @ k.mT + bias).softmax(-1) @ v).transpose(-3, -2).flatten(-2)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("queries", [1, 8])
def test_the_kernel_runs_and_the_result_has_the_strides_of_eager(queries):
    torch.manual_seed(0)
    q, k, v = torch.randn(2, 2, 4, queries, 16), torch.randn(2, 2, 2, 40, 16), torch.randn(2, 2, 2, 40, 24)
    options = {"inner": "eager", "executor": "triton", "libraries": False}
    compiled = torch.compile(decode, backend=onepass_backend, dynamic=False, options=options)
    given = (q, k, v, torch.randn(4, queries, 40))
    found, right = compiled(*given), decode(*given)
    torch.testing.assert_close(found, right)
    assert found.stride() == right.stride()
    report = onepass.reports()[-1]
    (region,) = report.regions
    assert region.executor.startswith("triton") and "not used again" not in str(report)
    stored = [len(s.output.shape) for kernel in region.data.plan.kernels for s in kernel.stores]
    assert (min(stored) == 5) == (queries > 1)  # b2, b, group, and 8 queries of 2 heads as one; one query stays a row

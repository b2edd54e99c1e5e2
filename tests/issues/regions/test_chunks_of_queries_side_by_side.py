"""Attention over chunks of queries that `torch.cat` joins: two chunks and the join became one kernel, which did both
softmaxes for the rows of all. Now each chunk has its own kernel, over its own rows.
"""

import pytest
import torch

import onepass

pytestmark = pytest.mark.usefixtures("fresh")


def attend(q, k, v):
    return (q @ k.mT / 8).softmax(-1) @ v


def in_chunks(q, k, v):
    return torch.cat([attend(part, k, v) for part in q.chunk(3, -2)], -2)


def by_head(q, k, v):
    return torch.stack([attend(q[:, h], k[:, h], v[:, h]) for h in range(2)], 1)


@pytest.mark.parametrize("function, count", [(in_chunks, 3), (by_head, 2)])
def test_each_part_has_a_kernel_over_its_own_rows(function, count):
    torch.manual_seed(0)
    given = [torch.randn(1, 2, 300, 16) for _ in range(3)]
    report = onepass.explain(function, *given)
    assert report.fused == count
    for region in report.regions:
        (kernel,) = region.data.plan.kernels
        assert kernel.rows.size == (100 if function is in_chunks else 300)
    options = {"inner": "eager", "executor": "tiled", "strict": True}
    run = torch.compile(function, backend=onepass.onepass_backend, options=options)
    with torch.no_grad():
        found = run(*given)
    torch.testing.assert_close(found.double(), function(*(x.double() for x in given)), rtol=1e-5, atol=1e-5)

"""A plan for unknown sizes is estimated with nominal ones, where one size divided by another may be 0.

Query heads in groups, q.view(b, h, -1, n, w) with unknown h, have 128 // 1024 = 0 members then: an estimate divided by
no programs, and the region was not fused. Found by `tests.fuzz --seed 40000`, four times in 6,000 programs.
"""

import pytest
import torch

import onepass
from onepass.api.backend import onepass_backend

pytestmark = pytest.mark.usefixtures("fresh")


def grouped(q, k, v):
    b, h = k.shape[:2]
    q = q.view(b, h, -1, *q.shape[2:])
    return torch.einsum("bhgij,bhje->bhgie", torch.einsum("bhgid,bhjd->bhgij", q, k).softmax(-1), v)


def test_groups_of_unknown_sizes_are_fused_and_right():
    torch.manual_seed(0)
    q = torch.randn(16, 1, 9, 1).permute(3, 2, 1, 0)
    k, v = torch.randn(1, 3, 16, 16), torch.randn(1, 3, 16, 5)
    compiled = torch.compile(grouped, backend=onepass_backend, dynamic=True, options={"inner": "eager"})
    torch.testing.assert_close(compiled(q, k, v), grouped(q, k, v))
    report = onepass.reports()[-1]
    assert len(report.regions) == 1 and not report.refusals

"""An attention whose result nobody uses made the search for regions fail, and with it every other one of the graph."""

import pytest
import torch

from onepass.api.backend import onepass_backend
from onepass.report import records

pytestmark = pytest.mark.usefixtures("fresh")


def first_head(q, k, v):
    heads = [torch.softmax(a @ b.mT, -1) @ c for a, b, c in zip(q.unbind(1), k.unbind(1), v.unbind(1), strict=True)]
    unused = (torch.softmax(k @ k.mT, -1) @ v).transpose(1, 2) * 2
    del unused
    return heads[0]


def test_what_is_used_is_fused_and_right():
    inputs = [torch.randn(2, 3, 9, 8) for _ in range(3)]
    run = torch.compile(first_head, backend=onepass_backend, options={"strict": True, "inner": "eager"})
    torch.testing.assert_close(run(*inputs), first_head(*inputs), atol=1e-5, rtol=1e-5)
    assert sum(region.count for r in records.reports() for region in r.regions) == 1

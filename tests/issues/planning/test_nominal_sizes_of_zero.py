"""A plan for unknown sizes is estimated with nominal ones, where one size divided by another may be 0.

Query heads in groups, q.view(b, h, -1, n, w) with unknown h, have 128 // 1024 = 0 members then: an estimate divided by
no programs, and the region was not fused. Found by `tests.fuzz --seed 40000`, four times in 6,000 programs. The
gradients of packed sequences of which ends are read from a tensor move 0 bytes then: that was divided by, too.
"""

import itertools

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


def of_each_sequence(q, k, v, ends):
    parts = []
    for start, end in itertools.pairwise(ends.tolist()):
        one, keys, values = (x[start:end].transpose(0, 1) for x in (q, k, v))
        parts.append(((one @ keys.mT / 4).softmax(-1) @ values).transpose(0, 1))
    return torch.cat(parts)


@pytest.mark.parametrize("dynamic", [None, True])
def test_sequences_whose_ends_are_data_are_fused_and_right(dynamic):
    run = onepass.compile(of_each_sequence, dynamic=dynamic, inner="eager", require="all", strict=True)
    for ends in ((0, 4, 9), (0, 1, 14)):
        given = [torch.randn(ends[-1], 4, 16, requires_grad=True) for _ in range(3)]
        wide = [x.detach().double().requires_grad_() for x in given]
        found, right = run(*given, torch.tensor(ends)), of_each_sequence(*wide, torch.tensor(ends))
        torch.testing.assert_close(found, right, check_dtype=False, atol=1e-5, rtol=1e-4)
        cotangent = torch.randn_like(found)
        gradients = torch.autograd.grad(found, given, cotangent), torch.autograd.grad(right, wide, cotangent.double())
        torch.testing.assert_close(*gradients, check_dtype=False, atol=1e-5, rtol=1e-4)
    assert all(region.backward.startswith("derived") for region in onepass.reports()[-1].regions)

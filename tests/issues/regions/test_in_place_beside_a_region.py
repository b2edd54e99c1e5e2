"""In-place operations beside a fused region stayed out of the compiled graph: fx took them for dead code."""

import pytest
import torch

from onepass.api.backend import onepass_backend
from onepass.report.records import reports


def attend(q, k, v):
    return torch.softmax(q @ k.mT / 4, -1) @ v


def scaled_key(q, k, v):
    k.mul_(1.1)
    return attend(q, k, v)


def written_cache(q, k, v):
    k.index_copy_(2, torch.arange(3), q[:, :, :3])
    return attend(q, k, v)


def counted(q, k, v):
    result = attend(q, k, v)
    v.zero_()
    return result


@pytest.mark.sampled(1)
@pytest.mark.parametrize("inner", ["eager", "inductor"])
@pytest.mark.parametrize("function", [scaled_key, written_cache, counted])
def test_inputs_are_changed_as_in_eager(function, inner):
    torch.manual_seed(0)
    first = [torch.randn(1, 2, 20, 16) for _ in range(3)]
    second = [x.clone() for x in first]
    compiled = torch.compile(function, backend=onepass_backend, options={"inner": inner, "strict": True})
    for _ in range(2):
        torch.testing.assert_close(compiled(*first), function(*second))
    for ours, eager in zip(first, second, strict=True):
        torch.testing.assert_close(ours, eager)
    assert sum(region.count for report in reports() for region in report.regions) >= 1

"""A bias of two plain numbers, as model libraries build masks, became a float64 tile on a CPU and failed."""

import pytest
import torch

from onepass.api.backend import onepass_backend


def attend(q, k, v):
    keep = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).tril()
    bias = torch.where(keep, 0.0, -1e9).to(q.dtype)
    return torch.softmax(q @ k.mT / 4 + bias, -1) @ v


@pytest.mark.sampled(1)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_bias_of_plain_numbers_is_computed_in_the_type_of_the_tensors(dtype):
    inputs = [torch.randn(1, 2, 20, 16, dtype=dtype) for _ in range(3)]
    run = torch.compile(attend, backend=onepass_backend, options={"strict": True, "inner": "eager"})
    result, wanted = run(*inputs), attend(*(t.double() for t in inputs))
    assert result.dtype == attend(*inputs).dtype
    torch.testing.assert_close(result.double(), wanted, atol=2e-2 if dtype == torch.bfloat16 else 1e-5, rtol=0)

"""A float64 fill in a softmax of float32 made the tiled executor fail: the number is beyond float32's range."""

import pytest
import torch

from onepass.api.backend import onepass_backend


def attend(q, k, v):
    s = q @ k.mT
    keep = torch.ones(s.shape[-2:], dtype=torch.bool).tril()
    s = torch.where(keep, s, torch.finfo(s.dtype).min)
    return torch.softmax(s, -1, dtype=torch.float32).to(v.dtype) @ v


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_fill_is_rounded_to_the_type_that_it_fills(dtype):
    inputs = [torch.randn(2, 20, 16, dtype=dtype) for _ in range(3)]
    run = torch.compile(attend, backend=onepass_backend, options={"strict": True, "inner": "eager"})
    torch.testing.assert_close(run(*inputs), attend(*inputs), rtol=1e-5, atol=5e-2 if dtype == torch.bfloat16 else 1e-5)

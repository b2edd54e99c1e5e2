"""Keys that are all filled with the least float64 have a constant for a score, which a state kept in float32: -inf."""

import pytest
import torch

from onepass.api.backend import onepass_backend

pytestmark = pytest.mark.usefixtures("fresh")


def joined(q, k, v, k2, v2):
    s = q @ torch.cat([k, k2], -2).mT
    i, j = torch.arange(s.shape[-2])[:, None], torch.arange(s.shape[-1])
    s = s.masked_fill((j >= 2) | (i // 4 == j // 4) | (j < 5), torch.finfo(s.dtype).min)
    return torch.softmax(s, -1) @ torch.cat([v, v2], -2)


CASES = [(torch.float64, "tiled"), (torch.float32, "tiled"), (torch.float32, "triton")]


@pytest.mark.parametrize("dtype,executor", CASES)
def test_rows_of_nothing_but_fills_are_uniform(dtype, executor):
    inputs = [torch.randn(2, n, 8, dtype=dtype) for n in (6, 6, 6, 3, 3)]
    options = {"strict": True, "inner": "eager", "executor": executor}
    run = torch.compile(joined, backend=onepass_backend, options=options)
    torch.testing.assert_close(run(*inputs), joined(*inputs))

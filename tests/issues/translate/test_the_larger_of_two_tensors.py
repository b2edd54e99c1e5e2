"""torch.max of two tensors, which decoders clamp masked scores with, was taken for a reduction and refused."""

import torch

import onepass
from onepass.api.backend import onepass_backend


def clamped(q, k, v, mask):
    score = q @ k.mT / 4 + mask
    score = torch.max(score, torch.tensor(torch.finfo(score.dtype).min))
    score = torch.min(other=torch.full_like(score, 3.0), input=score)
    return torch.softmax(score, dim=-1) @ v


def inputs():
    mask = torch.full((20, 20), torch.finfo(torch.float32).min).triu(1)
    return [torch.randn(2, 3, 20, 16, generator=torch.Generator().manual_seed(n)) for n in range(3)] + [mask]


def test_it_is_pointwise_code_of_one_kernel():
    report = onepass.explain(clamped, *inputs())
    assert (len(report.kernels), report.passes, report.refusals) == (1, (3, 1), ())


def test_the_result_is_eagers():
    tensors = inputs()
    fast = torch.compile(clamped, backend=onepass_backend, options={"inner": "eager"})
    torch.testing.assert_close(fast(*tensors), clamped(*tensors), rtol=1e-4, atol=1e-5)

"""Rotations that leave the rest of a head alone join it behind, also where there is no rest: that was refused."""

import torch

import onepass
from onepass.api.backend import onepass_backend


def attend(q, k, v, cos):
    width = cos.shape[-1]
    q, k = (torch.cat([x[..., :width] * cos, x[..., width:]], -1) for x in (q, k))
    return torch.softmax(q @ k.mT, -1) @ v


def test_a_whole_rotation_is_captured():
    inputs = [*(torch.randn(2, 19, 8) for _ in range(3)), torch.randn(19, 8)]
    report = onepass.explain(attend, *inputs)
    assert report.passes == (3, 1) and not report.refusals


def test_it_is_right_with_a_rest_and_without():
    for width in (8, 6):
        inputs = [*(torch.randn(2, 19, 8) for _ in range(3)), torch.randn(19, width)]
        run = torch.compile(attend, backend=onepass_backend, options={"strict": True, "inner": "eager"})
        torch.testing.assert_close(run(*inputs), attend(*inputs), rtol=1e-5, atol=1e-5)

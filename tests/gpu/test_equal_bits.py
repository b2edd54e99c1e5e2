"""The option invariant on a GPU: a prefill in Hopper's form, chunks of it and single tokens have the same bits."""

import math
from itertools import pairwise

import pytest
import torch

import onepass

pytestmark = [
    pytest.mark.usefixtures("fresh"),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def kept(q, k, width=10**6):
    i, j = (torch.arange(x.shape[2], device=q.device) for x in (q, k))
    behind = (k.shape[2] - q.shape[2] + i)[:, None] - j
    return (behind >= 0) & (behind < width)


def causal(q, k, v):
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    return (q @ k.mT * q.shape[-1] ** -0.5).masked_fill(~kept(q, k), -math.inf).softmax(-1) @ v


def capped_window(q, k, v):
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    scores = 3 * torch.tanh(q @ k.mT * q.shape[-1] ** -0.5 / 3)
    return scores.masked_fill(~kept(q, k, 700), -math.inf).softmax(-1) @ v


def slopes(q, k, v):
    i, j = (torch.arange(x.shape[2], device=q.device) for x in (q, k))
    slope = torch.exp2(-torch.arange(1, q.shape[1] + 1, device=q.device).to(q.dtype))[:, None, None]
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    scores = q @ k.mT * q.shape[-1] ** -0.5 + slope * (j - (k.shape[2] - q.shape[2] + i)[:, None])
    return scores.masked_fill(~kept(q, k), -math.inf).softmax(-1) @ v


def least_scores(q, k, v):
    """Scores that are not kept have the type's least number, as transformers' masks have."""
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    scores = q @ k.mT * q.shape[-1] ** -0.5
    return scores.masked_fill(~kept(q, k), torch.finfo(q.dtype).min).softmax(-1) @ v


@pytest.mark.parametrize(
    ("width", "function", "dtype"),
    [
        (64, capped_window, torch.bfloat16),
        (80, slopes, torch.bfloat16),
        (128, causal, torch.bfloat16),
        (128, causal, torch.float16),
        (128, least_scores, torch.bfloat16),
        (64, least_scores, torch.bfloat16),
    ],
)
@torch.no_grad()
def test_a_prefill_and_its_rows_one_by_one(width, function, dtype):
    torch.manual_seed(0)
    q, k, v = (3 * torch.randn(2, h, 2500, width, device="cuda", dtype=dtype) for h in (16, 4, 4))
    v[:, :, 1200] *= 100
    run = torch.compile(function, backend="onepass", options={"invariant": True, "inner": "eager"}, dynamic=True)
    whole = run(q, k, v)
    assert onepass.reports()[-1].regions[0].ran == "gluon"
    ends = (0, 1, 5, 200, 1025, 2500)
    parts = [run(q[:, :, a:b], k[:, :, :b], v[:, :, :b]) for a, b in pairwise(ends)]
    assert torch.equal(torch.cat(parts, 2), whole)
    right = function(*(x.double() for x in (q, k, v)))
    torch.testing.assert_close(whole.double(), right, atol=3e-2 * float(right.abs().max()), rtol=2e-2)

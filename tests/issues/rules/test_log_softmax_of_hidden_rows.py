"""exp(log_softmax(s)) of a row whose scores are all the type's least number gave the sum of the values, not the mean.

A law added the logarithm of the row's sum to the row's maximum, where it was lost: -3.4e38 + log n = -3.4e38.
"""

import torch

import onepass
from onepass.api.backend import onepass_backend


def attend(q, k, v, keep):
    scores = (q @ k.mT).masked_fill(~keep, torch.finfo(q.dtype).min)
    return scores.log_softmax(-1).exp() @ v


def test_a_hidden_row_is_the_mean_of_the_values_in_one_pass():
    q, k, v = (torch.randn(2, 24, 8) for _ in range(3))
    keep = torch.rand(24, 24) > 0.5
    keep[3] = False
    run = torch.compile(attend, backend=onepass_backend, options={"strict": True, "inner": "eager"})
    got = run(q, k, v, keep)
    torch.testing.assert_close(got, attend(q, k, v, keep), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(got[:, 3], v.mean(-2), rtol=1e-5, atol=1e-5)


def test_the_logarithm_meets_no_maximum():
    inputs = [torch.randn(2, 24, 8) for _ in range(3)]
    (region,) = onepass.explain(attend, *inputs, torch.rand(24, 24) > 0.5).regions
    assert region.passes == (3, 1)
    assert "max_j t0 + log" not in region.extracted

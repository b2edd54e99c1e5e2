"""Scores over their own spread stayed as written with a reason that named the addition behind `std`, not `std`."""

import torch

from onepass.api.backend import onepass_backend
from onepass.report import records


def spread(q, k, v):
    scores = q @ k.mT
    return (scores / (scores.std(-1, keepdim=True) + 1e-5)).softmax(-1) @ v


def test_a_refusal_names_the_call_that_is_not_understood_and_the_answer_is_right(fresh):
    inputs = [torch.randn(2, 24, 16) for _ in range(3)]
    run = torch.compile(spread, backend=onepass_backend, options={"inner": "eager"})
    torch.testing.assert_close(run(*inputs), spread(*inputs))
    (refusal,) = records.reports()[-1].refusals
    assert refusal.reason.startswith("std at ") and __file__.rsplit("/", 1)[-1] in refusal.reason

"""Running sums of scores (stick-breaking, selective attention) stay as written: what was named was not the running sum.

A view on the way, or log_sigmoid, which is pointwise and is understood now.
"""

import math

import pytest
import torch
from torch.nn import functional

import onepass
from onepass.api.backend import onepass_backend

pytestmark = pytest.mark.usefixtures("fresh")


def hidden(scores, diagonal):
    return torch.ones(scores.shape[-2:], dtype=torch.bool).triu(diagonal)


def stick_breaking(q, k, v):
    """Each key takes its share of what later keys have left."""
    scores = q @ k.mT / 4
    left = functional.logsigmoid(-scores).masked_fill(hidden(scores, 0), 0)
    rest = left.flip(-1).cumsum(-1).flip(-1) - left
    return torch.exp(functional.logsigmoid(scores) + rest).masked_fill(hidden(scores, 0), 0) @ v


def selective(q, k, v):
    """The first head's scores say what later rows shall forget."""
    scores = (q @ k.mT / 4).masked_fill(hidden(q @ k.mT, 1), -math.inf)
    forget = functional.relu(scores[:, :1]).cumsum(-2)
    return torch.softmax(scores - forget, -1) @ v


def log_sigmoid_scores(q, k, v):
    return functional.logsigmoid(q @ k.mT * 30).softmax(-1) @ v


CASES = {stick_breaking: "cumsum", selective: "cumsum", log_sigmoid_scores: None}


@pytest.mark.parametrize("function", CASES)
def test_the_running_sum_is_named(function):
    report = onepass.explain(function, *(torch.randn(2, 3, 40, 16) for _ in range(3)))
    reasons = [refusal.reason.split(" at ")[0] for refusal in report.refusals]
    assert (len(report.regions), reasons) == ((0, ["cumsum"]) if CASES[function] else (1, []))


@pytest.mark.parametrize("function", CASES)
def test_the_result_is_right(function):
    inputs = [torch.randn(2, 3, 40, 16) for _ in range(3)]
    run = torch.compile(function, backend=onepass_backend, options={"strict": True, "inner": "eager"})
    exact = function(*(x.double() for x in inputs))
    torch.testing.assert_close(run(*inputs), exact, check_dtype=False, atol=2e-5, rtol=1e-4)

"""torch.relu_(scores) kept its region as written, though scores.relu_() did not."""

import pytest
import torch
import torch.nn.functional as F

import onepass
from onepass.api.backend import onepass_backend

CHANGES = {
    "relu": torch.relu_,
    "exp": torch.exp_,
    "sigmoid": torch.sigmoid_,
    "clamp": lambda s: torch.clamp_(s, -1, 1),
    "a function of nn": lambda s: F.leaky_relu_(s, 0.2),
    "elu": F.elu_,
    "method": lambda s: s.relu_(),
}


def _changed(name):
    def attention(q, k, v):
        scores = q @ k.mT
        CHANGES[name](scores)
        return scores.softmax(-1) @ v

    return attention


def _seen(q, k, v):
    """What is written into is an input's memory: it has to change."""
    torch.relu_(q)
    return (q @ k.mT).softmax(-1) @ v


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", CHANGES)
def test_functions_that_change_scores_in_place_are_in_the_region(name):
    x = torch.randn(3, 1, 2, 9, 8)
    report = onepass.explain(_changed(name), *x)
    assert len(report.regions) == 1 and not report.refusals
    torch._dynamo.reset()
    compiled = torch.compile(_changed(name), backend=onepass_backend, options={"inner": "eager", "executor": "tiled"})
    assert torch.allclose(compiled(*x), _changed(name)(*x), atol=1e-5)


def test_an_input_that_is_changed_stays_changed():
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 1, 2, 9, 8)
    one, other = q.clone(), q.clone()
    torch._dynamo.reset()
    compiled = torch.compile(_seen, backend=onepass_backend, options={"inner": "eager", "executor": "tiled"})
    assert torch.allclose(compiled(one, k, v), _seen(other, k, v), atol=1e-5) and torch.equal(one, other)

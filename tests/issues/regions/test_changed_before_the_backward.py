"""A bias that the graph changes behind the attention: the backward recomputed from it, where eager saved nothing of it.

In training such a region is left as written; without gradients it is fused as before.
"""

import pytest
import torch

from onepass.api.backend import onepass_backend
from onepass.report import records
from tests.support.own_gradients import WAYS, fused, like_eager

pytestmark = pytest.mark.usefixtures("fresh")


def given(rows=40):
    torch.manual_seed(0)
    return [*(torch.randn(2, 3, rows, 16) for _ in range(3)), torch.randn(rows, rows)]


def bias_behind(q, k, v, bias):
    result = torch.softmax(q @ k.mT * 0.25 + bias, -1) @ v
    bias.mul_(0.5)
    return result


def view_behind(q, k, v, bias):
    result = torch.softmax(q @ k.mT * 0.25 + bias, -1) @ v
    bias[0].zero_()
    return result


def positions_behind(q, k, v, bias):
    places = bias[0].to(torch.long)
    result = torch.softmax(q @ k.mT * 0.25 - (places[:, None] - places[None]).abs(), -1) @ v
    bias.add_(1)
    return result


def bias_before(q, k, v, bias):
    bias.mul_(0.5)
    return torch.softmax(q @ k.mT * 0.25 + bias, -1) @ v


def another_behind(q, k, v, bias):
    result = torch.softmax(q @ k.mT * 0.25, -1) @ v
    bias.mul_(0.5)
    return result


BEHIND = [bias_behind, view_behind, positions_behind]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("function", BEHIND, ids=lambda f: f.__name__)
def test_in_training_it_is_left_as_written(function, way):
    found = like_eager(function, *given(), way=way, requires=3)
    (refusal,) = found.refusals
    assert refusal.kind == "in-place" and "backward" in refusal.reason and refusal.file == __file__
    assert not found.regions


@pytest.mark.sampled(1)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("function", [bias_before, another_behind], ids=lambda f: f.__name__)
def test_what_no_backward_reads_may_change(function, way):
    assert fused(like_eager(function, *given(), way=way, requires=3)) == 1


@pytest.mark.sampled(1)
@pytest.mark.parametrize("function", BEHIND, ids=lambda f: f.__name__)
def test_without_gradients_it_is_fused(function):
    run = torch.compile(function, backend=onepass_backend, options={"strict": True, **WAYS["eager"]})
    mine, exact = given(), [x.double() for x in given()]
    mine[0].requires_grad_()
    with torch.no_grad():
        torch.testing.assert_close(run(*mine), function(*exact), check_dtype=False, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(mine[3], exact[3], check_dtype=False)
    assert fused(records.reports()[-1]) == 1

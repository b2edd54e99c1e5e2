"""The ways out that OP303 names are run: each program that is refused has one that does the same and is fused.

The message said "write it in other operations", which a sort has none of, and "a second time from the inputs", which
drops a score that is compared with a threshold: the two computations differ by rounding.
"""

import pytest
import torch

import onepass
from onepass import messages

pytestmark = pytest.mark.usefixtures("fresh")
LAYER = torch.nn.Linear(300, 300)


def sort(scores):
    return scores + torch.sort(scores, -1).values


def running_sum(scores):
    return scores + scores.cumsum(-1)


def median(scores):
    return scores - scores.median()


def deviation(scores):
    return scores / scores.std()


def layer(scores):
    return scores + LAYER.to(scores.dtype)(scores)


CHANGES = [sort, running_sum, median, deviation, layer]


def refused(change, q, k, v):
    return torch.softmax(change(q @ k.mT), -1) @ v


def scores_of_its_own(change, q, k, v):
    scores = q @ k.mT
    changed = {
        sort: lambda s: scores + torch.sort(s, -1).values,
        running_sum: lambda s: scores + s.cumsum(-1),
        median: lambda s: scores - s.median(),
        deviation: lambda s: scores / s.std(),
        layer: lambda s: scores + LAYER.to(s.dtype)(s),
    }[change]
    return torch.softmax(changed(q @ k.mT), -1) @ v


def threshold(q, k, v):
    scores = q @ k.mT
    least = scores.topk(8, -1).values[..., -1:]
    return torch.softmax(scores.masked_fill(scores < least, -torch.inf), -1) @ v


def places(q, k, v):
    scores = q @ k.mT
    keep = torch.zeros(scores.shape, dtype=torch.bool).scatter(-1, (q @ k.mT).topk(8, -1).indices, True)
    return torch.softmax(scores.masked_fill(~keep, -torch.inf), -1) @ v


def inputs():
    return [torch.randn(2, n, 16) for n in (40, 300, 300)]


def is_fused_and_right(function, *tensors):
    assert onepass.explain(function, *tensors, options={"require": "all"}).fused == 1
    fast = onepass.compile(function, inner="eager", executor="tiled")(*tensors)
    exact = function(*(x.double() for x in tensors))
    error = lambda x: (x.double() - exact).abs().max()
    assert error(fast) <= 2 * error(function(*tensors)) + 1e-5


@pytest.mark.parametrize("change", CHANGES)
def test_scores_of_its_own_are_fused(change):
    tensors = inputs()
    with torch.no_grad():
        (found,) = onepass.explain(lambda q, k, v: refused(change, q, k, v), *tensors).refusals
        assert found.code == messages.CYCLE.code
        is_fused_and_right(lambda q, k, v: scores_of_its_own(change, q, k, v), *tensors)


@pytest.mark.parametrize("scale", [1.0, 30.0])
def test_a_mask_of_places_is_fused_and_keeps_as_many(scale):
    q, k, v = inputs()
    (found,) = onepass.explain(threshold, q, k, v).refusals
    assert found.code == messages.CYCLE.code and "zeros.scatter(-1, places, True)" in messages.way_out(found.code)
    is_fused_and_right(places, q * scale, k, v)
    torch.testing.assert_close(places(q, k, v), threshold(q, k, v))

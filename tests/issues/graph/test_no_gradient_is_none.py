"""Where no derivative passes, as behind detach(), eager gives no gradient; our zeros let weight decay move weights."""

import pytest
import torch

from onepass.graph.trace import program_of
from tests.support.own_gradients import WAYS, attend, fused, heads, like_eager

pytestmark = pytest.mark.usefixtures("fresh")


def fixed_keys(q, k, v):
    return attend(q, k.detach(), v)


def fixed_weights(q, k, v):
    return torch.softmax(q @ k.mT / 4, -1).detach() @ v


def fixed_scores(q, k, v):
    return torch.softmax((q @ k.mT / 4).detach(), -1) @ v


def fixed_result(q, k, v):
    return attend(q, k, v).detach() * q


def fixed_maximum(q, k, v):
    scores = q @ k.mT / 4
    weights = torch.exp(scores - scores.detach().amax(-1, keepdim=True))
    return weights @ v / weights.sum(-1, keepdim=True)


def weights_beside(q, k, v):
    weights = torch.softmax(q @ k.mT / 4, -1)
    return weights.detach() @ v, weights.detach().square().sum(-1)


def straight_through(q, k, v):
    weights = torch.softmax(q @ k.mT / 4, -1)
    hard = (weights > 0.02).to(weights.dtype)
    return (hard - weights.detach() + weights) @ v


def compared_keys(q, k, v):
    return torch.softmax((q @ q.mT / 4).masked_fill(k[..., 0].unsqueeze(-2) > 1, -1e4), -1) @ v


FUNCTIONS = [fixed_keys, fixed_weights, fixed_scores, fixed_result, fixed_maximum]
FUNCTIONS += [weights_beside, straight_through, compared_keys]


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_who_has_a_gradient_is_as_in_eager(function, way):
    found = like_eager(function, *heads(), way=way)
    assert fused(found) == 1 and not found.refusals


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_the_paths_that_are_read_off_are_those_of_autograd(function):
    given = heads(8)
    paths = program_of(function, *given).differentiable
    for place in range(len(given)):
        results = function(*(x.detach().requires_grad_(k == place) for k, x in enumerate(given)))
        results = results if isinstance(results, tuple) else (results,)
        assert [place in path for path in paths] == [r.requires_grad for r in results]


def test_weight_decay_leaves_what_has_no_gradient():
    class Frozen(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.q, self.k, self.v = (torch.nn.Linear(16, 16) for _ in range(3))

        def forward(self, x):
            return fixed_weights(self.q(x), self.k(x), self.v(x))

    model = Frozen()
    before = [p.detach().clone() for p in model.parameters()]
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.5)
    torch.compile(model, backend="onepass")(torch.randn(2, 40, 16)).square().sum().backward()
    optimizer.step()
    moved = [not torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True)]
    assert moved == [False, False, False, False, True, True]

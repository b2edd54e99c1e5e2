"""Reports named inputs `getattr_1` where the user wrote k.mT, and a reason named `exp(log[b, i, d])`, no value of his.

Inputs of a region have the names of arguments, variables and modules. A reason names calls and lines.
"""

import copy

import pytest
import torch

import onepass


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.q_proj, self.k_proj, self.v_proj = (torch.nn.Linear(32, 32) for _ in range(3))
        self.slopes = torch.nn.Parameter(torch.rand(2))

    def forward(self, x):
        b, n, _ = x.shape
        split = lambda y: y.view(b, n, 2, 16).transpose(1, 2)
        places = torch.arange(n)
        scores = split(self.q_proj(x)) @ split(self.k_proj(x)).mT / 4
        scores = scores - self.slopes[:, None, None] * (places[:, None] - places).abs()
        return scores.softmax(-1) @ split(self.v_proj(x))


def test_gradients_are_of_what_the_user_named():
    (region,) = onepass.explain(Block(), torch.randn(2, 40, 32), gradients=True).regions
    names = {name for name, _ in region.gradients.forms}
    assert names == {"q_proj_view", "k_proj_mT", "slopes", "v_proj_view"}
    assert "getattr" not in str(region) and "getitem" not in str(region)


def test_names_change_no_gradient():
    torch._dynamo.reset()
    model, x = Block(), torch.randn(2, 40, 32)
    exact = copy.deepcopy(model).double()
    exact(x.double()).square().sum().backward()
    torch.compile(model, backend="onepass")(x).square().sum().backward()
    for own, right in zip(model.parameters(), exact.parameters(), strict=True):
        torch.testing.assert_close(own.grad, right.grad.float(), rtol=1e-3, atol=1e-3)


def by_the_largest(q, k, v, mixing):
    weights = torch.sigmoid(q @ k.mT)
    return weights / weights.amax(-1, keepdim=True) @ v


def largest(q, k, v, mixing):
    apart = (q[:, :, :, None] - k[:, :, None]).abs()
    return torch.softmax(-apart.amax(-1), -1) @ v


@pytest.mark.slow
@pytest.mark.parametrize(("function", "call"), [(by_the_largest, "amax"), (largest, "amax")])
def test_reasons_name_the_call_and_its_line(function, call):
    arguments = [*(torch.randn(2, 2, 40, 16) for _ in range(3)), torch.randn(2, 2)]
    (refused,) = onepass.explain(function, *arguments, gradients=True).refusals
    line = function.__code__.co_firstlineno + 2
    assert f"({call} at {__file__}:{line})" in refused.reason
    assert "[" not in refused.reason

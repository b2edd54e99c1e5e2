"""A multiple between two attentions was the tail of the first and a copy in the second: KeyError as calls were put."""

import pytest
import torch

import onepass

ROUNDS = 3


def softmax(score):
    return torch.softmax(score, -1)


CASES = {
    "softmax": lambda x, y: softmax(2 * x @ y.mT) @ y,
    "sigmoid": lambda x, y: torch.sigmoid(x * 0.125 @ y.mT) @ y,
    "softcap": lambda x, y: softmax(3 * torch.tanh(x * 0.125 @ y.mT / 3)) @ y,
}


def chain(attend):
    def function(x, y):
        for _ in range(ROUNDS):
            x = attend(x, y)
        return x

    return function


def beside(x, y):
    """The multiple is also a result."""
    x = 2 * (softmax(x @ y.mT) @ y)
    return softmax(x @ y.mT) @ y, x


def inputs():
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(2, n, 16, generator=generator) * 0.3 for n in (70, 133)]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", CASES)
def test_every_link_is_fused(name):
    found = onepass.explain(chain(CASES[name]), *inputs(), options={"libraries": False})
    assert sum(region.count for region in found.regions) == ROUNDS and not found.refusals


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", [*CASES, "beside"])
@pytest.mark.parametrize("options", [{"executor": "tiled"}, {"libraries": False}], ids=str)
def test_it_computes_the_chain(name, options):
    torch._dynamo.reset()
    function = beside if name == "beside" else chain(CASES[name])
    compiled = torch.compile(function, backend="onepass", options={"strict": True, **options})
    exact = function(*(x.double() for x in inputs()))
    for found, wanted in zip(compiled(*inputs()), exact, strict=True):
        torch.testing.assert_close(found.double(), wanted, atol=1e-5, rtol=1e-5)
    assert sum(region.count for region in onepass.reports()[-1].regions) == (2 if name == "beside" else ROUNDS)

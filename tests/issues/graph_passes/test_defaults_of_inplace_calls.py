"""F.hardtanh(x, max_val=0.5, inplace=True) became an operator's call with its arguments by position, and those that
were not given were missing: 0.5 was taken for the least value, and F.dropout(x, inplace=True) raised."""

import pytest
import torch
import torch.nn.functional as F

from onepass.api.backend import onepass_backend

CALLS = {
    "later argument": lambda x: F.hardtanh(x, max_val=0.5, inplace=True),
    "dropout in eval": lambda x: F.dropout(x, training=False, inplace=True),
    "by keyword alone": lambda x: F.leaky_relu(input=x, inplace=True),
    "all by position": lambda x: F.elu(x, 0.7, True),
    "threshold": lambda x: F.threshold(x, value=3.0, threshold=0.1, inplace=True),
    "not in place": lambda x: F.hardtanh(x, max_val=0.5),
    "rrelu in eval": lambda x: F.rrelu(x, inplace=True),
}


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("around", [False, True], ids=["alone", "on scores"])
def test_arguments_that_are_not_given_have_their_defaults(name, around):
    def function(q, k):
        made = q @ k.mT
        changed = CALLS[name](made)
        return (changed.softmax(-1) @ k if around else changed), made * 1

    torch.manual_seed(0)
    inputs = torch.randn(2, 2, 9, 8)
    torch._dynamo.reset()
    compiled = torch.compile(function, backend=onepass_backend, options={"inner": "eager", "executor": "tiled"})
    for one, other in zip(compiled(*inputs), function(*inputs), strict=True):
        assert torch.allclose(one, other, atol=1e-6)


def test_dropout_in_place_draws_what_eager_draws():
    function = lambda q, k: F.dropout((q @ k.mT) * 1, inplace=True)
    inputs = torch.randn(2, 2, 9, 8)
    compiled = torch.compile(function, backend=onepass_backend, options={"inner": "eager"})
    results = []
    for one in (function, compiled):
        torch.manual_seed(3)
        results.append(one(*inputs))
    assert torch.equal(*results)

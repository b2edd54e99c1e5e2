"""A bias looked up beyond its table raises IndexError in eager; the fused form read what lay there instead."""

import pytest
import torch
import torch.nn.functional as F

import onepass
from onepass.api.backend import onepass_backend

LENGTH = 12
PLACE = torch.arange(LENGTH)


def _biased(places, size, by_embedding=False):
    table = torch.randn(size, 3, generator=torch.Generator().manual_seed(0))

    def attention(q, k, v):
        i = torch.arange(q.shape[2])
        at = places(i[:, None] - i)
        bias = F.embedding(at, table) if by_embedding else table[at]
        return torch.softmax(q @ k.mT + bias.permute(2, 0, 1), -1) @ v

    return attention


BEYOND = {
    "above": _biased(lambda far: far + 8, 17),
    "below": _biased(lambda far: far - 20, 23),
    "embedding above": _biased(lambda far: far + 8, 17, True),
    "embedding below": _biased(lambda far: far, 23, True),
    "by a table of squares": _biased(lambda far: far * far, 100),
}
WITHIN = {
    "just": _biased(lambda far: far + 11, 23),
    "from the end": _biased(lambda far: far, 12),
    "clamped": _biased(lambda far: far.clamp(-4, 4) + 4, 9, True),
    "squares": _biased(lambda far: far * far, 122),
}


def _compiled(function):
    torch._dynamo.reset()
    return torch.compile(function, backend=onepass_backend, options={"inner": "eager", "executor": "tiled"})


def _inputs():
    torch.manual_seed(1)
    return torch.randn(3, 1, 3, LENGTH, 8)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", BEYOND)
def test_places_beyond_a_table_raise_as_in_eager(name):
    for function in (BEYOND[name], _compiled(BEYOND[name])):
        with pytest.raises(IndexError):
            function(*_inputs())


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", WITHIN)
def test_places_within_it_are_looked_up_inside(name):
    assert onepass.explain(WITHIN[name], *_inputs()).regions
    assert torch.allclose(_compiled(WITHIN[name])(*_inputs()), WITHIN[name](*_inputs()), atol=1e-5)

"""`k[:, -n:]` with a symbolic n began n places in front of the tensor: only literal positions were counted from the
end. Lengths by int(n / 2) or math.ceil(n / 4) could not be read, and one that only the original calls read raised."""

import math

import pytest
import torch
import torch.nn.functional as F

from onepass.api.backend import onepass_backend
from onepass.egraph.terms.sizes import resolve, term_of, value_of


def _attended(q, k, v):
    return torch.softmax(q @ k.mT, -1) @ v


def _last(q, k, v):
    n = q.shape[1]
    return _attended(q, k[:, -n:], v[:, -n:])


def _narrowed(q, k, v):
    n = q.shape[1]
    return _attended(q, k.narrow(1, -n, n), v.narrow(1, -n, n))


def _last_half(q, k, v):
    n = q.shape[1] // 2
    return _attended(q, k[:, -n:], v[:, -n:])


def _bottom_right(q, k, v):
    kept = torch.ones(k.shape[1], k.shape[1]).tril().bool()[-q.shape[1] :]
    return torch.softmax((q @ k.mT).masked_fill(~kept, -1e9), -1) @ v


def _last_places(q, k, v):
    j = torch.arange(k.shape[1])
    return torch.softmax((q @ k.mT).masked_fill(j > j[-q.shape[1] :, None], -math.inf), -1) @ v


def _half(q, k, v):
    n = int(k.shape[1] / 2)
    return _attended(q, k[:, :n], v[:, :n])


def _behind_half(q, k, v):
    n = math.floor(k.shape[1] / 2)
    return _attended(q, k[:, n:], v[:, n:])


def _windows(q, k, v):
    n = q.shape[1]
    more = math.ceil(n / 4) * 4 - n
    q, k, v = (F.pad(x[:, :n], (0, 0, 0, more)).view(2, -1, 4, 16) for x in (q, k, v))
    return _attended(q, k, v).flatten(1, 2)[:, :n]


FUNCTIONS = (_last, _narrowed, _last_half, _bottom_right, _last_places, _half, _behind_half, _windows)
SIZES = {"FloorToInt": math.floor, "CeilToInt": math.ceil, "TruncToInt": math.trunc}


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("n", [1, 7, 8, 9, 30])
def test_rounded_quotients_of_sizes_are_numbers(name, n):
    text = f"{name}(IntTrueDiv(s0, 4))"
    assert value_of(text, {"s0": n}) == resolve(text, {"s0": n}) == SIZES[name](n / 4)
    assert "s0" in str(term_of(text)) and term_of(text).dtype == "int64"


@pytest.mark.sampled(1)
@pytest.mark.parametrize("dynamic", [True, None])
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_every_length_is_right(function, dynamic):
    torch._dynamo.reset()
    options = {"inner": "eager", "executor": "tiled", "libraries": False, "strict": True}
    compiled = torch.compile(function, backend=onepass_backend, dynamic=dynamic, options=options)
    for length in (8, 13, 22):
        torch.manual_seed(length)
        inputs = [torch.randn(2, n, 16) for n in (length, length + 3, length + 3)]
        with torch.no_grad():
            assert torch.allclose(compiled(*inputs), function(*inputs), atol=1e-5)

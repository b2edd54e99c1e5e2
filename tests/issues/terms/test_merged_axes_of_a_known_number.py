"""Rows of groups folded into one axis, `q.view(b, 2, 3 * n, d)`, with a symbolic n: a quotient by it took any constant
for one, so that 3 was lost and other rows were read."""

import pytest
import torch

from onepass.api.backend import onepass_backend
from onepass.egraph.terms.index_simplify import floordiv, mod
from onepass.egraph.terms.ops import const, iota, make
from onepass.egraph.terms.term import Dim


def _folded(q, k, v):
    b, _, n, d = q.shape
    return torch.softmax(q.view(b, 2, 3 * n, d) @ k.mT, -1) @ v


def _pairs(q, k, v):
    rows = lambda x: x.reshape(x.shape[0], 2, 2 * x.shape[2], -1)[:, :, ::2]
    return torch.softmax(rows(q[:, :4]) @ rows(k.repeat(1, 2, 1, 1)).mT, -1) @ rows(v.repeat(1, 2, 1, 1))


def test_a_product_by_a_size_keeps_its_other_factor():
    size, h, i = make("size", (), ("n",)), iota(Dim("h", 2)), iota(Dim("i", "n"))
    for factor in (2, 3, 5):
        flat = h * (const(factor) * size) + i
        assert floordiv(flat, size) is h * const(factor) and mod(flat, size) is i


@pytest.mark.sampled(1)
@pytest.mark.parametrize("dynamic", [True, None])
@pytest.mark.parametrize("function", [_folded, _pairs])
def test_every_length_reads_its_own_rows(function, dynamic):
    torch._dynamo.reset()
    options = {"inner": "eager", "executor": "tiled", "libraries": False, "strict": True}
    compiled = torch.compile(function, backend=onepass_backend, dynamic=dynamic, options=options)
    for length in (8, 12, 21):
        torch.manual_seed(length)
        inputs = [torch.randn(2, heads, length, 16) for heads in (6, 2, 2)]
        with torch.no_grad():
            assert torch.allclose(compiled(*inputs), function(*inputs), atol=1e-5)

"""An einsum of one operand may be a view: what was written into it did not reach the tensor that it looks at."""

import pytest
import torch

from onepass.api.backend import onepass_backend
from onepass.graph.survey import survey


def _scaled_input(x, k, v):
    q = torch.einsum("bnhd->bhnd", x)
    q *= 0.3
    return torch.softmax(q @ k.mT, -1) @ v


def _diagonal(x, k, v):
    s = x.transpose(1, 2) @ k.mT
    torch.einsum("bhii->bhi", s).sub_(1e9)
    return s.softmax(-1) @ v


def _item(x, k, v):
    q = torch.einsum("bnhd->bhnd", x)
    q[..., 0] = 0
    return torch.softmax(q @ k.mT, -1) @ v


def _results_alike(x, k, v):
    o = torch.softmax(x.transpose(1, 2) @ k.mT, -1) @ v
    t = torch.einsum("bhnd->bnhd", o)
    t *= 2
    return o, t


def _only_read(x, k, v):
    return torch.softmax(torch.einsum("bnhd->bhnd", x) @ k.mT, -1) @ v


FUNCTIONS = (_scaled_input, _diagonal, _item, _results_alike, _only_read)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("inner", ["eager", "inductor"])
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_what_is_written_into_a_view_reaches_its_tensor(function, inner):
    torch.manual_seed(0)
    x, k, v = torch.randn(1, 9, 2, 8), *torch.randn(2, 1, 2, 9, 8)
    one, other = x.clone(), x.clone()
    torch._dynamo.reset()
    options = {"inner": inner, "executor": "tiled"}
    given = torch.compile(function, backend=onepass_backend, options=options)(one, k, v)
    expected = function(other, k, v)
    assert torch.allclose(one, other)
    for a, b in zip(*(r if isinstance(r, tuple) else (r,) for r in (given, expected)), strict=True):
        assert torch.allclose(a, b, atol=1e-5)


def test_an_einsum_that_only_moves_axes_is_no_contraction():
    graphs = []

    def backend(graph, example_inputs):
        graphs.append(graph.graph)
        return graph.forward

    def function(x, y):
        return torch.einsum("ij->ji", x) + torch.einsum("ij,kj->ki", x, y) + torch.einsum("ij->j", x)

    torch._dynamo.reset()
    torch.compile(function, backend=backend)(*torch.randn(2, 4, 4))
    kinds = [kind for node, kind in survey(graphs[0]).kind.items() if "einsum" in str(node.target)]
    assert kinds == ["other", "contraction", "contraction"]

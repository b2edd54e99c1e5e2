"""A view that moves axes in front of the last one is part of a region in training, too: the graph has fewer nodes with
gradients. Where a tensor is also read otherwise, is cut first, or loses its last axis, its views are inputs, as before.
"""

import pytest
import torch
from torch import fx

import onepass
from onepass.api import backend
from onepass.api.backend import onepass_backend

pytestmark = pytest.mark.usefixtures("fresh")


def attend(q, k, v):
    return (q @ k.mT / 4).softmax(-1) @ v


def packed(x):
    q, k, v = x.unflatten(-1, (3, 4, 16)).permute(2, 0, 3, 1, 4).unbind(0)
    return attend(q, k, v)


def transposed_keys(q, k, v):
    return (q @ k / 4).softmax(-1) @ v.movedim(0, 1)


def shared(x):
    q, k, v = (x.transpose(0, 1) for _ in range(3))
    return attend(q, k, v)


def flattened(q, k, v):
    return attend(q, k.permute(1, 0, 2).reshape(24, 16), v)


# name: (function, shapes of its inputs, how many views are left in front of the region)
PROGRAMS = {
    "heads behind": (lambda *given: attend(*(x.transpose(1, 2) for x in given)), [(2, 24, 4, 16)] * 3, 2),
    "all axes": (lambda *given: attend(*(x.permute(2, 3, 0, 1) for x in given)), [(24, 16, 2, 4)] * 3, 4),
    "transposed keys": (transposed_keys, [(4, 24, 16), (4, 16, 24), (24, 4, 16)], 0),
    "one tensor for all": (shared, [(24, 4, 16)], 4),
    "keys as values": (lambda q, k: attend(q, k, k), [(4, 24, 16)] * 2, 1),
    "packed": (packed, [(2, 24, 192)], 4),
    "flattened behind a move": (flattened, [(24, 16), (4, 6, 16), (24, 16)], 3),
}


VIEWS = ("permute", "transpose", "movedim", "mT", "getattr", "unflatten", "unbind", "reshape")


@pytest.fixture
def graphs(monkeypatch):
    """(what is left of each graph, whether it runs without a compiler: with one view with a gradient at most)."""
    found, decide = [], backend.leaves_nothing_to_compile

    def noted(gm: fx.GraphModule) -> bool:
        found.append(([str(node.target) for node in gm.graph.nodes], decide(gm)))
        return found[-1][1]

    monkeypatch.setattr(backend, "leaves_nothing_to_compile", noted)
    return found


@pytest.mark.parametrize("name", PROGRAMS)
def test_its_gradients_are_those_of_the_original_calls(name, graphs):
    function, shapes, left = PROGRAMS[name]
    torch.manual_seed(0)
    given = [torch.randn(shape, requires_grad=True) for shape in shapes]
    exact = function(*(x.double() for x in given))
    torch._dynamo.reset()
    found = torch.compile(function, backend=onepass_backend)(*given)
    assert onepass.reports()[-1].regions, onepass.reports()[-1]
    cotangent = torch.randn(found.shape)
    wanted = torch.autograd.grad(exact, given, cotangent.double())
    torch.testing.assert_close(found.double(), exact, rtol=1e-5, atol=1e-6)
    for mine, other in zip(torch.autograd.grad(found, given, cotangent), wanted, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-5)
    (targets, straight), *_ = graphs
    views = [t for t in targets if any(name in t for name in VIEWS)]
    assert (len(views), straight) == (left, left <= 1), views


def test_a_result_that_is_changed_in_place_is_noticed(graphs):
    """A gradient of the base of a view, after a write to the view's tensor, is refused as torch does."""
    function, shapes, _ = PROGRAMS["heads behind"]
    given = [torch.randn(shape, requires_grad=True) for shape in shapes]
    copies = [x * 1.0 for x in given]
    result = torch.compile(function, backend=onepass_backend)(*copies)
    copies[0].mul_(2.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.sum().backward()

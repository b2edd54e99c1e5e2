"""Rows of a layer: what moves in front of it, what becomes one axis, what stays; that the graph computes the same."""

import pytest
import torch
import torch.nn.functional as F

from onepass.graph import reduced_products
from onepass.graph.op_kinds import name_of
from tests.support import layer_rows

BATCH, TIME, WIDTH, CLASSES = 3, 5, 4, 7


def scores(h, w):
    return F.linear(h, w)


# Each with the shape of the rows that the layer has afterwards.
MOVED = {
    "flat": (lambda h, w, y: scores(h, w).view(-1, CLASSES).logsumexp(-1), (15, WIDTH)),
    "cut": (lambda h, w, y: scores(h, w)[:, :-1].reshape(-1, CLASSES).logsumexp(-1), (12, WIDTH)),
    "cut by all axes": (lambda h, w, y: scores(h, w)[..., 1:, :].logsumexp(-1), (12, WIDTH)),
    "every second": (lambda h, w, y: scores(h, w)[1:, ::2, :].float().amax(-1), (6, WIDTH)),
    "one place": (lambda h, w, y: (scores(h, w)[:, -1] * 2).logsumexp(-1), (3, WIDTH)),
    "one place of a batch": (lambda h, w, y: scores(h, w)[0, None, :3].logsumexp(-1), (3, WIDTH)),
    "turned": (lambda h, w, y: scores(h, w).transpose(0, 1).flatten(0, 1).logsumexp(-1), (15, WIDTH)),
    "permuted": (lambda h, w, y: scores(h, w).permute(1, 0, 2).exp().sum(-1), (15, WIDTH)),
    "two axes": (lambda h, w, y: scores(h, w).logsumexp(-1), (15, WIDTH)),
    "two axes, positive": (lambda h, w, y: scores(h, w).logsumexp(2, keepdim=True), (15, WIDTH)),
    "picked": (lambda h, w, y: scores(h, w).log_softmax(-1).gather(2, y[..., None])[:, :, 0], (15, WIDTH)),
    "its own sum": (lambda h, w, y: (scores(h, w) - scores(h, w).amax(-1, True)).exp().sum(-1), (15, WIDTH)),
    "shifted": (lambda h, w, y: shifted(scores(h, w)).exp().sum(dim=2), (15, WIDTH)),
    "operands of rows": (lambda h, w, y: (scores(h, w) * (y[..., None] > 2) + w[:, 0]).logsumexp(-1), (15, WIDTH)),
    "operands of classes": (lambda h, w, y: (scores(h, w) * w[None, None, :, 0]).logsumexp(-1), (15, WIDTH)),
    "several items": (lambda h, w, y: scores(h, w).max(-1), (15, WIDTH)),
    "met": (lambda h, w, y: (scores(h, w) / 2).amax(-1).float() - scores(h, w).logsumexp(-1), (15, WIDTH)),
    "both views": (lambda h, w, y: both_views(scores(h, w)), (15, WIDTH)),
    "classes second": (lambda h, w, y: F.cross_entropy(scores(h, w).transpose(1, 2), y), (15, WIDTH)),
    "probabilities": (lambda h, w, y: F.cross_entropy(scores(h, w).mT, one_hot(y).mT), (15, WIDTH)),
    "bias by name": (lambda h, w, y: F.linear(h, w, bias=w[:, 0])[:, 1:].logsumexp(-1), (12, WIDTH)),
    "matmul": (lambda h, w, y: (h @ w.T)[:, 1:].logsumexp(-1), (12, WIDTH)),
}
STAYING = {
    "classes are cut": lambda h, w, y: scores(h, w)[..., :5].flatten(1).logsumexp(-1),
    "a class": lambda h, w, y: scores(h, w)[..., 0],
    "a new last axis": lambda h, w, y: scores(h, w)[..., None].logsumexp(-2),
    "classes are rows": lambda h, w, y: scores(h, w).transpose(1, 2).flatten(0, 1).logsumexp(-1),
    "over rows": lambda h, w, y: scores(h, w).logsumexp(1),
    "over all": lambda h, w, y: scores(h, w).sum(),
    "a triangle": lambda h, w, y: scores(h, w).tril().logsumexp(-1),
    "returned": lambda h, w, y: returned(scores(h, w)),
    "not reduced": lambda h, w, y: scores(h, w)[:, :-1].relu(),
    "of other rows": lambda h, w, y: (scores(h, w) + h[:1, :, :1]).logsumexp(-1),
    "losses of rows": lambda h, w, y: F.cross_entropy(scores(h, w).transpose(1, 2), y, reduction="none"),
    "other axes second": lambda h, w, y: F.cross_entropy(scores(h, w), y[:, :1].expand(-1, CLASSES) % TIME),
}


def shifted(s):
    return s - s.logsumexp(-1).unsqueeze(-1)


def both_views(s):
    return s.view(-1, CLASSES).logsumexp(-1).sum() + s.amax(-1).sum()


def returned(s):
    return s, s[:, :-1].logsumexp(-1)


def one_hot(y):
    return F.one_hot(y, CLASSES).float()


def given():
    torch.manual_seed(0)
    return torch.randn(BATCH, TIME, WIDTH), torch.randn(CLASSES, WIDTH), torch.randint(CLASSES, (BATCH, TIME))


@pytest.fixture
def of_any_size(monkeypatch):
    monkeypatch.setattr(reduced_products, "LEAST_ELEMENTS", 1)


def rewritten(function, gradients=False, dynamic=False):
    """What a function gives with its graph rewritten, and the graph."""
    h, w, y = given()
    found, graphs = layer_rows.rewritten(function, h.requires_grad_(gradients), w, y, dynamic=dynamic)
    return found, graphs[-1]


def shapes_of_rows(graph):
    layers = [n for n in graph.nodes if name_of(n) in ("linear", "matmul")]
    return [tuple(n.args[0].meta["example_value"].shape) for n in layers]


@pytest.mark.usefixtures("of_any_size")
@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("name", MOVED)
def test_rows_are_one_axis_in_front_of_the_layer(name, gradients):
    function, shape = MOVED[name]
    found, graph = rewritten(function, gradients)
    torch.testing.assert_close(found, function(*given()))
    assert {*shapes_of_rows(graph)} == {shape}
    for node in graph.nodes:
        value = node.meta.get("example_value")
        if isinstance(value, torch.Tensor) and node.op in ("call_function", "call_method") and gradients:
            read = [n.meta["example_value"] for n in node.all_input_nodes]
            asked = any(isinstance(x, torch.Tensor) and x.requires_grad for x in read)
            assert value.requires_grad == (asked and value.is_floating_point()) or not isinstance(read[0], torch.Tensor)


@pytest.mark.usefixtures("of_any_size")
@pytest.mark.parametrize("name", STAYING)
def test_what_reads_more_than_rows_stays(name):
    function = STAYING[name]
    found, graph = rewritten(function)
    torch.testing.assert_close(found, function(*given()))
    assert {*shapes_of_rows(graph)} == {(BATCH, TIME, WIDTH)}


@pytest.mark.usefixtures("of_any_size")
@pytest.mark.parametrize("name", [*MOVED, *STAYING])
def test_lengths_that_are_symbols(name):
    function = MOVED[name][0] if name in MOVED else STAYING[name]
    found, _ = rewritten(function, dynamic=True)
    torch.testing.assert_close(found, function(*given()))


def test_small_layers_stay():
    _, graph = rewritten(MOVED["cut by all axes"][0])
    assert shapes_of_rows(graph) == [(BATCH, TIME, WIDTH)]

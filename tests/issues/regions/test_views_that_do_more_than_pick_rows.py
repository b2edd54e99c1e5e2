"""Views behind a layer that do more than pick rows, and shapes that are no rows of it, were treated as plain picks.

A `detach`, which is behind what is made under `no_grad`, too, moved in front of the layer as a reshape: the gradient
came back. A view of another dtype was dropped. A reduction of what has rows alone, as behind squeeze(-1) of one class,
reduced all rows. An index list that also adds an axis lost its order. A gather of one place, a copy in a format of four
axes, a layer of width 0, a split and a layer under `vmap` raised errors, in part after the graph was changed. What
torch.func.grad differentiates inside a graph was taken for what records no gradients.
"""

import pytest
import torch
import torch.nn.functional as F

import onepass
from onepass.graph import reduced_products
from onepass.graph.op_kinds import name_of
from tests.support.layer_rows import rewritten

BATCH, TIME, WIDTH, CLASSES = 3, 7, 5, 11


def scores(h, w):
    return F.linear(h, w)


def made_without_gradients(h, w, y):
    s = scores(h, w)
    with torch.no_grad():
        rows = s[:, :-1]
    return rows.logsumexp(-1) + h.sum()


def turned_without_gradients(h, w, y):
    s = scores(h, w)
    with torch.no_grad():
        turned = s.mT
    return F.cross_entropy(turned, y) + h.sum()


def of_one_class(h, w, y):
    return scores(h, w[:1]).squeeze(-1).logsumexp(-1)


def largest_of_largest(h, w, y):
    s = scores(h, w)
    return (s - s.amax(-1).amax(-1)[:, None, None]).exp().sum(-1)


def backwards(h, w, y):
    return scores(h, w)[..., [*range(CLASSES)][::-1], None].squeeze(-1).argmax(-1)


def in_two(h, w, y):
    return [part.logsumexp(-1) for part in scores(h, w).split([3, 4], 1)]


def copied_for_images(h, w, y):
    s = scores(h[:, :, None], w).contiguous(memory_format=torch.channels_last)
    return s.reshape(-1, CLASSES).logsumexp(-1)


def cast_for_images(h, w, y):
    s = scores(h[:, :, None], w).to(torch.float64, memory_format=torch.channels_last)
    return s.reshape(-1, CLASSES).logsumexp(-1)


def without_width(h, w, y):
    return F.cross_entropy(scores(h[..., :0], w[:, :0])[:, :-1].reshape(-1, CLASSES), y[:, 1:].reshape(-1))


def of_each_sequence(h, w, y):
    losses = torch.func.vmap(lambda s, t: F.cross_entropy(scores(s[None], w)[:, :-1].reshape(-1, CLASSES), t[1:]))
    return losses(h, y)


def gradient_of_a_part(h, w, y):
    function = lambda x: (scores(x, w).detach()[:, :-1].logsumexp(-1) * x[:, 1:].sum(-1)).sum()
    return torch.func.grad(function)(h)


def gradient_past_no_grad(h, w, y):
    def function(x):
        s = scores(x, w)
        with torch.no_grad():
            rows = s[:, :-1]
        return (rows.logsumexp(-1) * x[:, 1:].sum(-1)).sum()

    return torch.func.grad(function)(h)


def gradient_past_a_change(h, w, y):
    """What no_grad hides from autograd is the change alone: in a function, it was all that is in front of it, too."""

    def function(x):
        s = scores(x, w)
        with torch.no_grad():
            s.div_(2)
        return s.logsumexp(-1).sum()

    return torch.func.grad(function)(h)


def tangent_of_a_part(h, w, y):
    function = lambda x: scores(x, w).detach()[:, :-1].logsumexp(-1) * x[:, 1:].sum(-1)
    return torch.func.jvp(function, (h,), (h * 2,))[1]


PROGRAMS = {
    "detach": lambda h, w, y: scores(h, w).detach()[:, :-1].logsumexp(-1) + h.sum(),
    "detach, a gradient inside": gradient_of_a_part,
    "no_grad, a gradient inside": gradient_past_no_grad,
    "a change, a gradient inside": gradient_past_a_change,
    "detach, a tangent inside": tangent_of_a_part,
    "no_grad": made_without_gradients,
    "no_grad, turned": turned_without_gradients,
    "another dtype": lambda h, w, y: scores(h, w).detach().view(torch.int32)[:, :-1].amax(-1),
    "one class": of_one_class,
    "largest of largest": largest_of_largest,
    "backwards": backwards,
    "one place": lambda h, w, y: scores(h, w).log_softmax(-1).gather(-1, y[:1, :1, None]),
    "fewer places": lambda h, w, y: scores(h, w).log_softmax(-1).gather(-1, y[:, 2:, None]),
    "in two": in_two,
    "copied for images": copied_for_images,
    "cast for images": cast_for_images,
    "no width": without_width,
    "vmap": of_each_sequence,
    "all arguments by name": lambda h, w, y: F.linear(input=h, weight=w)[:, :-1].logsumexp(-1),
}
MAY_BE_FLAT = {"no_grad", "no_grad, turned", "copied for images"}  # as `detach` stays, if there is one


def given(kind=torch.float32):
    torch.manual_seed(0)
    h, w = torch.randn(BATCH, TIME, WIDTH), torch.randn(CLASSES, WIDTH)
    return h.to(kind), w.to(kind), torch.randint(CLASSES, (BATCH, TIME))


def with_gradients(run, h, w, y):
    leaves = [h.requires_grad_(), w.requires_grad_()]
    found = run(*leaves, y)
    found = found if isinstance(found, list) else [found]
    asked = [x for x in found if x.requires_grad]
    if not asked:
        return found, [None, None]
    return found, torch.autograd.grad(sum(x.sum() for x in asked), leaves, allow_unused=True)


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_layer_has_the_rows_that_are_read(name, monkeypatch):
    monkeypatch.setattr(reduced_products, "LEAST_ELEMENTS", 1)
    h, w, y = given()
    _, graphs = rewritten(PROGRAMS[name], h.requires_grad_(), w, y)
    layers = [n for graph in graphs for n in graph.nodes if name_of(n) == "linear"]
    ranks = [n.meta["example_value"].ndim for n in layers]
    assert name in MAY_BE_FLAT or min(ranks) > 2


@pytest.mark.parametrize("name", PROGRAMS)
def test_results_and_gradients_are_those_of_float64(name, monkeypatch):
    monkeypatch.setattr(reduced_products, "LEAST_ELEMENTS", 1)
    torch._dynamo.reset()
    kind = torch.float32 if name == "another dtype" else torch.float64
    right, gradients = with_gradients(PROGRAMS[name], *given(kind))
    options = {"inner": "eager", "libraries": False, "executor": "tiled"}
    run = torch.compile(PROGRAMS[name], backend=onepass.onepass_backend, options=options)
    found, found_gradients = with_gradients(run, *given())
    assert not onepass.reports()[-1].failures
    for one, exact in zip(found, right, strict=True):
        assert one.requires_grad == exact.requires_grad
        tolerance = 1e-5 if one.is_floating_point() else 1e-6
        torch.testing.assert_close(one, exact, check_dtype=False, atol=tolerance, rtol=tolerance)
    for one, exact in zip(found_gradients, gradients, strict=True):
        assert (one is None) == (exact is None)
        if exact is not None:
            torch.testing.assert_close(one, exact, check_dtype=False, atol=1e-5, rtol=1e-5)

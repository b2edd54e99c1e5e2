"""Losses by label as terms, against torch in float64: axes, reductions, weights, smoothing, ignored and wrong ones."""

import itertools

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from onepass.egraph.terms.evaluate import evaluate
from onepass.errors import Refusal
from onepass.graph.trace import program_of
from onepass.translate.translate import translate

SHAPES = {"rows": (5, 7), "one row": (7,), "images": (2, 7, 3), "one class": (4, 1)}


def value(function, *given):
    captured = translate(program_of(function, *given))
    tensors = {t.name: x.numpy() for t, x in zip(captured.inputs, given, strict=True)}
    return evaluate(captured.term, tensors, captured.order)


def drawn(shape):
    axis = min(1, len(shape) - 1)
    labels = torch.randint(shape[axis], shape[:axis] + shape[axis + 1 :])
    return torch.randn(shape, dtype=torch.float64), labels, torch.rand(shape[axis], dtype=torch.float64)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize(("weighted", "ignored"), itertools.product((False, True), (-100, 0)))
def test_cross_entropy(shape, reduction, smoothing, weighted, ignored):
    scores, labels, weight = drawn(SHAPES[shape])

    def loss(x, y, w):
        given = {"reduction": reduction, "ignore_index": ignored, "label_smoothing": smoothing}
        return F.cross_entropy(x, y, w if weighted else None, **given)

    np.testing.assert_allclose(value(loss, scores, labels, weight), loss(scores, labels, weight), rtol=1e-12)


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
def test_likelihood(reduction):
    scores, labels, weight = drawn((5, 7))
    loss = lambda x, y, w: F.nll_loss(x.log_softmax(-1), y, w, reduction=reduction, ignore_index=2)
    np.testing.assert_allclose(value(loss, scores, labels, weight), loss(scores, labels, weight), rtol=1e-12)


def test_nothing_counts():
    scores, labels, _ = drawn((5, 7))
    loss = lambda x, y: F.cross_entropy(x, y)
    assert np.isnan(value(loss, scores, torch.full_like(labels, -100)))


def test_a_label_that_is_no_class():
    scores, labels, _ = drawn((5, 7))
    labels[1], labels[3] = 7, -1
    found = value(lambda x, y: F.cross_entropy(x, y, reduction="none"), scores, labels)
    assert np.isinf(found).tolist() == [False, True, False, True, False]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("weighted", [False, True])
def test_probabilities(shape, reduction, smoothing, weighted):
    scores, _, weight = drawn(SHAPES[shape])
    axis = min(1, scores.ndim - 1)
    loss = lambda x, p, w: F.cross_entropy(
        x, p, w if weighted else None, reduction=reduction, label_smoothing=smoothing
    )
    probabilities = torch.randn_like(scores).softmax(axis)
    found = value(loss, scores, probabilities, weight)
    np.testing.assert_allclose(found, loss(scores, probabilities, weight), rtol=1e-12)


@pytest.mark.parametrize("reduction", ["none", "sum", "mean", "batchmean"])
@pytest.mark.parametrize("logarithms", [False, True])
@pytest.mark.parametrize("columns", [7, 1])
def test_divergence(reduction, logarithms, columns):
    """Of targets that are 0, too, and of one for all columns."""
    x, t = torch.randn(5, 7, dtype=torch.float64), torch.rand(5, columns, dtype=torch.float64)
    t[2], t = 0.0, t.log() if logarithms else t
    t = t.clamp_min(-20)
    loss = lambda x, t: F.kl_div(x, t, reduction=reduction, log_target=logarithms)
    np.testing.assert_allclose(value(loss, x, t), loss(x, t), rtol=1e-12)


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize("weight", [None, (7,), (5, 1), (5, 7)])
@pytest.mark.parametrize("positive", [None, (7,), (1,)])
def test_binary_cross_entropy(reduction, weight, positive):
    """Of scores up to 1e3, where an exponential of one is infinite."""
    x, t = 300 * torch.randn(5, 7, dtype=torch.float64), torch.rand(5, 7, dtype=torch.float64)
    more = [None if shape is None else torch.rand(shape, dtype=torch.float64) for shape in (weight, positive)]
    given = [x, t, *(one for one in more if one is not None)]

    def loss(x, t, *rest):
        rest = iter(rest)
        w, p = (None if one is None else next(rest) for one in more)
        return F.binary_cross_entropy_with_logits(x, t, w, reduction=reduction, pos_weight=p)

    np.testing.assert_allclose(value(loss, *given), loss(*given), rtol=1e-12)


def test_targets_of_fewer_axes_are_refused():
    with pytest.raises(Refusal, match="as many axes"):
        value(lambda x, t: F.kl_div(x, t), torch.randn(3, 4), torch.rand(4))

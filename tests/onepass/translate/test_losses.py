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


def test_probabilities_are_refused():
    with pytest.raises(Refusal, match="labels that are integers"):
        value(lambda x, p: F.cross_entropy(x, p), torch.randn(3, 4), torch.rand(3, 4))

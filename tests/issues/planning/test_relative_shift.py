"""Scores that are moved along their rows (Transformer-XL) were folded point by point, each at a quotient and a rest of
its place: now the places are differences where lengths are known, some only where a mask keeps them, and the fold is a
product of matrices in any case."""

import math

import pytest
import torch
import torch.nn.functional as F

import onepass
from onepass.egraph.terms.evaluate import evaluate
from onepass.egraph.terms.index_simplify import simplify_index
from onepass.egraph.terms.ops import const, iota, make
from onepass.egraph.terms.term import Dim
from onepass.egraph.terms.traversal import subterms
from onepass.lowering.triton.kernel import emit
from tests.lowering.planning.test_inline_producers import planned

LENGTH = 33


def _shifted(x):
    b, h, n, places = x.shape
    padded = torch.cat([torch.zeros(b, h, n, 1), x], -1).view(b, h, places + 1, n)
    return padded[:, :, 1:].view_as(x)[..., : places // 2 + 1]


def transformer_xl(q, k, v, r):
    return torch.softmax((q @ k.mT + _shifted(q @ r.mT)) / 4, -1) @ v


def xlnet(q, k, v, r):
    x = q @ r.mT
    b, h, i, j = x.shape
    moved = x.reshape(b, h, j, i)[:, :, 1:].reshape(b, h, i, j - 1)[..., : k.shape[-2]]
    return torch.softmax((q @ k.mT + moved) / 4, -1) @ v


def music(q, k, v, r):
    x = F.pad(q @ r.mT, (1, 0))
    b, h, i, j = x.shape
    hidden = torch.ones(i, i, dtype=torch.bool).triu(1)
    scores = (q @ k.mT + x.reshape(b, h, j, i)[:, :, 1:]) / 4
    return torch.softmax(scores.masked_fill(hidden, -math.inf), -1) @ v


PLACES = {transformer_xl: lambda n: 2 * n - 1, xlnet: lambda n: 2 * n, music: lambda n: n}


def inputs(function, n):
    torch.manual_seed(n)
    return [torch.randn(2, 2, n, 16) for _ in range(3)] + [torch.randn(2, PLACES[function](n), 16)]


@pytest.mark.parametrize("function", PLACES)
def test_places_are_differences_and_products_are_skewed_back(function):
    plan = planned(function, inputs(function, LENGTH))
    (kernel,) = plan.kernels
    assert not any(n.op in ("floordiv", "mod") for store in kernel.stores for n in subterms(store.term))
    text = emit(kernel, plan).text
    assert "tl.gather(tl.dot(q_tile" in text and "tl.sum(" not in text.replace("tl.sum(weight", "")


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["tiled", "triton"])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("function", PLACES)
def test_scores_are_made_of_matrices(function, dynamic, executor):
    torch._dynamo.reset()
    options = {"inner": "eager", "executor": executor, "strict": True, "libraries": False}
    compiled = torch.compile(function, backend="onepass", options=options, dynamic=dynamic)
    for n in (40, LENGTH, 70):
        given = inputs(function, n)
        torch.testing.assert_close(compiled(*given).double(), function(*(x.double() for x in given)), atol=2e-5, rtol=0)
    (region,) = onepass.reports()[-1].regions
    if dynamic:  # places are quotients and rests of what nobody knows
        folded, attention = region.kernels
        assert not folded.loops and attention.loops == ("j",) and "is a function of place" in region.between[0]


@pytest.mark.parametrize("factor", [-3, 1, 4, 5, 6, 9, 10, 11, 65])
@pytest.mark.parametrize("divisor", [1, 2, 5, 10, 66])
def test_near_multiples_divide_as_numbers_do(factor, divisor):
    i, j = iota(Dim("i", 7)), iota(Dim("j", 9))
    for op in ("floordiv", "mod"):
        for start in (-divisor, 0, 3, 33):
            term = make(op, (i * const(factor) + j + const(start), const(divisor)))
            assert (
                evaluate(simplify_index(term), {}, sorted(term.dims)) == evaluate(term, {}, sorted(term.dims))
            ).all()


def test_a_quotient_and_a_rest_come_together_behind_a_step():
    t, size = iota(Dim("t", "n")), make("size", (), ("s",))
    assert simplify_index((t // size + const(1)) * size + t % size) is simplify_index(t + size)

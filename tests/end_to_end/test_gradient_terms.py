"""The derived gradients of every variant, as their terms mean them, against autograd in float64."""

import numpy as np
import pytest
import torch

from onepass.egraph.calculus.gradient import Laws, gradients
from onepass.egraph.calculus.partials import NotDifferentiable
from onepass.egraph.calculus.reverse_mode import Result
from onepass.egraph.derivation.normalize import Normaliser
from onepass.egraph.search.extract import passes
from onepass.egraph.terms.evaluate import evaluate
from onepass.egraph.terms.term import Tensor
from onepass.errors import Refusal
from onepass.graph.trace import program_of
from onepass.rules import GATHERED, NORMAL, SHIFT_FREE
from onepass.translate.translate import translate
from tests.variants import every

LAWS = Laws(NORMAL, SHIFT_FREE, GATHERED)
REFUSED = {  # a maximum is asked for, or weights are mixed behind their softmax
    "documents from cumulative lengths": "aten.bucketize.Tensor is not supported",
    "heads composed by each query": "could overflow",
    "hidden rows of one key set, merged": "could overflow",
    "hidden rows, results beside the output": "a largest element",
    "largest difference": "a largest element",
    "largest score beside the output": "a largest element",
    "logarithms of weights mixed": "could overflow",
    "neighbouring heads": "could overflow",
    "place of the largest score beside the output": "positions of extrema of float64",
    "talking heads": "could overflow",
    "talking heads, two": "could overflow",
    "two key sets, log-sum-exp beside the output": "could overflow",
}
SEVERAL_PASSES = {"mean weights beside the output", "weights beside the output"}  # weights are stored and read again
# The buckets of T5 round in float32: the evaluation in float64 puts some distances into another one.
CASES = {variant.name: variant for variant in every() if variant.name != "T5 bias"}


def _results(captured):
    normaliser = Normaliser(NORMAL)
    for number, r in enumerate(captured.results):
        cotangent = Tensor(f"cotangent{number}", "float64", r.output.shape)
        yield Result(normaliser.normal(r.term), r.output, r.order, cotangent)


def _autograd(function, inputs, cotangents):
    leaves = [x.clone().requires_grad_(x.is_floating_point()) for x in inputs]
    found = function(*leaves)
    results = found if isinstance(found, tuple) else (found,)
    wanted = [x for x in leaves if x.requires_grad]
    return torch.autograd.grad(results, wanted, cotangents(results), allow_unused=True)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", CASES)
def test_every_gradient_is_autograds(name):
    variant = CASES[name]
    torch.manual_seed(0)
    inputs = [x.double() if x.is_floating_point() else x for x in variant.inputs()]
    try:
        program = program_of(variant.function, *inputs)
        results = [*_results(translate(program))]
        given = dict(zip((i.name for i in program.inputs), inputs, strict=True))
        wanted = [n for n, x in given.items() if x.is_floating_point()]
        derived = gradients(results, wanted, LAWS)
    except (NotDifferentiable, Refusal) as error:
        assert REFUSED.get(name, "nothing") in str(error)
        return
    assert name not in REFUSED
    assert (max(passes(g.term) for g in derived.gradients) > 1) == (name in SEVERAL_PASSES)
    drawn: list[torch.Tensor] = []
    cotangents = lambda found: drawn.extend(torch.randn_like(r) for r in found) or drawn
    expected = dict(zip(wanted, _autograd(variant.function, inputs, cotangents), strict=True))
    arrays = {n: x.numpy() for n, x in given.items()} | {f"cotangent{k}": x.numpy() for k, x in enumerate(drawn)}
    for saved in derived.saved:
        arrays[saved.tensor.name] = evaluate(saved.term, arrays, saved.order)
    for gradient in derived.gradients:
        exact = expected[gradient.tensor.name].numpy()
        found = np.broadcast_to(evaluate(gradient.term, arrays, gradient.axes), exact.shape)
        number = ~np.isnan(exact)  # eager's own are not, where a row has no key
        error = np.abs(found - exact)[number].max(initial=0.0)
        assert error <= 1e-7 * max(np.abs(exact[number]).max(initial=0.0), 1e-30), gradient.tensor.name

"""A softmax in base 2 took two passes: no law took the maximum and the sum of powers of two as one state.

Powers of two of differences are exponentials of scores times log 2; other powers of two stay as they are.
"""

import math
import os

import pytest
import torch

from onepass.compiler.optimize import optimize_all
from onepass.egraph.terms.traversal import subterms
from onepass.graph.trace import program_of
from onepass.lowering.tiled.executor import tiled_results
from onepass.lowering.triton.launch import Launcher
from onepass.translate.translate import translate


def normalised(weights, v):
    return weights / weights.sum(-1, keepdim=True) @ v


def by_exp2(q, k, v):
    scores = q @ k.mT
    return normalised(torch.exp2(scores - scores.amax(-1, keepdim=True)), v)


def by_power(q, k, v):
    scores = q @ k.mT / 4 * math.log2(math.e)
    weights = 2 ** (scores - scores.amax(-1, keepdim=True))
    return weights @ v / weights.sum(-1, keepdim=True)


def causal(q, k, v):
    scores = q @ k.mT
    scores = scores.masked_fill(torch.ones_like(scores).tril() == 0, -math.inf)
    return normalised(torch.exp2(scores - scores.max(-1, keepdim=True).values), v)


def with_sink(q, k, v):
    scores = q @ k.mT
    top = scores.amax(-1, keepdim=True).clamp(min=0.0)
    weights = torch.exp2(scores - top)
    return weights @ v / (weights.sum(-1, keepdim=True) + torch.exp2(-top))


def sloped(q, k, v):
    slopes = torch.exp2(-torch.arange(1, q.shape[0] + 1).to(q.dtype))[:, None, None]
    return torch.softmax(q @ k.mT * slopes, -1) @ v


def sloped_from_five(q, k, v):
    slopes = 2.0 ** (-5 - torch.arange(q.shape[0]).to(q.dtype))[:, None, None]
    return torch.softmax(q @ k.mT * slopes, -1) @ v


BASE_TWO = (by_exp2, by_power, causal, with_sink)


def found_of(function, kind=torch.float32, size=1.0):
    torch.manual_seed(0)
    inputs = [torch.randn(3, n, 16).to(kind) for n in (70, 70, 70)]
    inputs[0] = inputs[0] * size
    return optimize_all(translate(program_of(function, *inputs)).results), inputs


@pytest.mark.parametrize("function", BASE_TWO)
def test_one_pass_by_one_state(function):
    found, _ = found_of(function)
    assert found.passes_after == 1 and any(name.startswith("power_of_two") for name in found.fired)
    states = {n for n in subterms(found.term) if n.op == "reduce" and n.attrs[0] == "rescaled"}
    folded = {n.args[0].args[0] for n in states}
    assert len(folded) == 1 and "exp2" not in {n.op for state in states for n in subterms(state)}


@pytest.mark.parametrize("function", [sloped, sloped_from_five])
def test_other_powers_of_two_keep_their_bits(function):
    found, _ = found_of(function)
    assert "exp2" in {n.op for n in subterms(found.term)} and not {r for r in found.fired if r.startswith("power")}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("executor", ["tiled", "triton"])
@pytest.mark.parametrize("kind, size", [(torch.float32, 1.0), (torch.float32, 200.0), (torch.bfloat16, 1.0)])
@pytest.mark.parametrize("function", BASE_TWO)
def test_it_is_right(function, kind, size, executor):
    if executor == "triton" and os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("needs Triton's interpreter")
    found, inputs = found_of(function, kind, size)
    named = dict(zip("qkv", inputs, strict=True))
    (result,) = tiled_results(found.plan, named) if executor == "tiled" else Launcher(found.plan).results(named)
    exact = function(*(x.double() for x in inputs))
    scores = 16 * size  # the largest are some 16, and an error of a bit of one is one of the weights
    allowed = (2 if kind == torch.bfloat16 else 0) * torch.finfo(kind).eps + 2e-6 + 4e-7 * scores
    assert (result.double() - exact).abs().max() <= allowed * exact.abs().max()

"""Scores divided by what is no literal, under an exact softmax: taking their sum apart did not end."""

import pytest
import torch

from onepass.compiler.optimize import optimize_all
from onepass.graph.trace import program_of
from onepass.lowering.hopper.form_facts import gauges
from onepass.lowering.hopper.kernel_form import Binding, bind
from onepass.lowering.hopper.score_offsets import addends
from onepass.lowering.tiled.executor import tiled_results
from onepass.translate.translate import translate


def divided(q, k, v, t):
    return torch.softmax(q @ k.mT * 0.3 / t.abs(), -1) @ v


def divided_and_biased(q, k, v, t):
    return torch.softmax(q @ k.mT / t - t / 2, -1) @ v


def planned(function, dtype=torch.float16):
    torch.manual_seed(0)
    inputs = [torch.randn(2, n, 64).to(dtype) for n in (130, 71, 71)] + [torch.tensor(1.5, dtype=dtype)]
    return optimize_all(translate(program_of(function, *inputs)).results).plan, inputs


@pytest.mark.parametrize("function", [divided, divided_and_biased])
def test_a_quotient_and_a_rounding_are_addends_of_their_own(function):
    plan, _ = planned(function)
    binding = bind(plan.kernels[0])
    assert isinstance(binding, Binding)
    for gauge, _ in gauges(binding):
        assert all((constant and term is not gauge) or gauge.op in ("div", "cast") for constant, term in addends(gauge))


@pytest.mark.parametrize("function", [divided, divided_and_biased])
def test_and_it_computes_the_right_thing(function):
    plan, inputs = planned(function, torch.float32)
    (result,) = tiled_results(plan, dict(zip("qkvt", inputs, strict=True)), {})
    exact = function(*(x.double() for x in inputs))
    assert (result - exact).abs().max() < 1e-5

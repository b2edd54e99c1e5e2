"""Gradients of weights that are divided by their sum took 33 times torch.compile's time.

A quotient around a product put the values' dim on the grid: each product of rows and columns was done 64 times.
"""

import pytest
import torch

from onepass.lowering.cost import estimated_plan
from tests.support.backwards import backward_of, drawn, hold_gradients, kernel_of, leaves

pytestmark = pytest.mark.usefixtures("fresh")


def divided(q, k, v):
    weights = q @ k.mT
    return (weights @ v) / weights.sum(-1, keepdim=True)


def near(q, k, v):
    weights = torch.exp(-(q[..., None, :] - k[..., None, :, :]).square().mean(-1))
    return (weights / weights.sum(-1, keepdim=True)) @ v


def test_as_derived_no_product_is_done_for_each_value(monkeypatch):
    monkeypatch.setattr(estimated_plan, "another_form_could_pay", lambda *_: False)
    plan = backward_of(divided, *leaves(*[(8, 32, 2048, 64)] * 3))
    kernel = kernel_of(plan, "grad_v")
    assert len(kernel.stores) == 2 and [d.size for d in kernel.grid] == [8, 32]
    assert 64 in {d.size for d in kernel.held}


@pytest.mark.parametrize("function", [divided, near])
@pytest.mark.parametrize("searched", [False, True])
def test_they_are_those_of_float64(function, searched, monkeypatch):
    monkeypatch.setattr(estimated_plan, "another_form_could_pay", lambda *_: searched)
    monkeypatch.setattr(estimated_plan, "takes_less_time", lambda *_: True)
    inputs = [x.abs() for x in drawn([(2, 3, 40, 16)] * 3)]
    assert "derived" in hold_gradients(function, inputs, "tiled")


@pytest.mark.sampled(1)
@pytest.mark.parametrize("offset", [0, 100])
def test_what_queries_and_keys_have_in_common_costs_no_digits(offset, monkeypatch):
    """A product rounds its weights, so a difference of a query and a key must not become two products."""
    monkeypatch.setattr(estimated_plan, "another_form_could_pay", lambda *_: True)
    monkeypatch.setattr(estimated_plan, "takes_less_time", lambda *_: True)
    torch.manual_seed(0)
    q, k, v = ((torch.randn(1, 1, 256, 32) + by).bfloat16() for by in (offset, offset, 0))
    hold_gradients(near, [q, k, v], "triton", allowed=1e-2)


@pytest.mark.sampled(1)
def test_what_values_have_in_common_costs_no_more_than_in_eager(monkeypatch):
    monkeypatch.setattr(estimated_plan, "another_form_could_pay", lambda *_: True)
    monkeypatch.setattr(estimated_plan, "takes_less_time", lambda *_: True)
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 1, 128, 16).abs().bfloat16() for _ in range(3))
    hold_gradients(divided, [q, k, v + 10], "triton", allowed=1e-2)

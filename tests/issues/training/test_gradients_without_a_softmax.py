"""Gradients of weights that are divided by their sum took 33 times torch.compile's time, those of distances 4.6 times.

A quotient around a product put the values' dim on the grid: each product of rows and columns was done 64 times. And a
difference of a query and a key is no matrix, so its sum was done element by element.
"""

import pytest
import torch

from onepass.egraph.terms.traversal import subterms
from onepass.training import searched_forms
from tests.support.backwards import backward_of, drawn, hold_gradients, kernel_of, leaves

pytestmark = pytest.mark.usefixtures("fresh")


def divided(q, k, v):
    weights = q @ k.mT
    return (weights @ v) / weights.sum(-1, keepdim=True)


def near(q, k, v):
    weights = torch.exp(-(q[..., None, :] - k[..., None, :, :]).square().mean(-1))
    return (weights / weights.sum(-1, keepdim=True)) @ v


def test_as_derived_no_product_is_done_for_each_value(monkeypatch):
    monkeypatch.setattr(searched_forms, "another_form_could_pay", lambda *_: False)
    plan = backward_of(divided, *leaves(*[(8, 32, 2048, 64)] * 3))
    kernel = kernel_of(plan, "grad_v")
    assert len(kernel.stores) == 2 and [d.size for d in kernel.grid] == [8, 32]
    assert 64 in {d.size for d in kernel.held}


def test_distances_have_gradients_by_products_of_matrices():
    plan = backward_of(near, *leaves(*[(8, 4, 512, 64)] * 3))
    assert len(plan.kernels) == 3
    for kernel in plan.kernels:
        for value in (value for loop in kernel.loops for state in loop.accumulators for value in state.values):
            added = [n for n in subterms(value, lambda n: n.op == "reduce") if n.op in ("add", "sub")]
            assert all(len(n.dims - {*kernel.grid}) <= 2 for n in added)


@pytest.mark.parametrize("function", [divided, near])
@pytest.mark.parametrize("searched", [False, True])
def test_they_are_those_of_float64(function, searched, monkeypatch):
    monkeypatch.setattr(searched_forms, "another_form_could_pay", lambda *_: searched)
    monkeypatch.setattr(searched_forms, "takes_less_time", lambda *_: True)
    inputs = [x.abs() for x in drawn([(2, 3, 40, 16)] * 3)]
    assert "derived" in hold_gradients(function, inputs, "tiled")

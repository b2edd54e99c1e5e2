"""A result that the graph changed in place behind another use made the compilation fail where a compiler is inside.

The backward reads the result, and autograd found it changed. Now what the graph changes is a copy. Found by
`tests.fuzz --gradients --seed 3000`.
"""

import pytest
import torch
from torch._dynamo.backends.debugging import aot_eager_decomp_partition

import onepass
from onepass.api import backend

pytestmark = pytest.mark.usefixtures("fresh")


def copied_before(q, k, v):
    result = torch.softmax(q @ k.mT, -1) @ v
    copy = result.clone()
    result.mul_(0)
    return copy


def both_returned(q, k, v):
    result = torch.softmax(q @ k.mT, -1) @ v
    total = result.sum()
    result *= 2
    return total, result


def through_a_view(q, k, v):
    result = torch.softmax(q @ k.mT, -1) @ v
    total = result.sum(-1)
    result[..., :2] = 1
    return total, result


def untouched(q, k, v):
    return torch.softmax(q @ k.mT, -1) @ v


def compiled(function, inner, monkeypatch):
    monkeypatch.setattr(backend, "_inductor", lambda gm, inputs, options, mode: seen(gm, inputs))
    copies = []

    def seen(gm, inputs):
        copies.extend(n for n in gm.graph.nodes if n.op == "call_method" and n.target == "clone")
        return aot_eager_decomp_partition(gm, inputs)

    return torch.compile(function, backend="onepass", options={"inner": inner, "strict": True}), copies


@pytest.mark.sampled(1)
@pytest.mark.parametrize("inner", ["eager", "inductor"])
@pytest.mark.parametrize("function", [copied_before, both_returned, through_a_view])
def test_values_and_gradients_are_eagers(function, inner, monkeypatch):
    mine = [torch.randn(2, n, 8, requires_grad=True) for n in (9, 11, 11)]
    exact = [x.detach().double().requires_grad_() for x in mine]
    run, _ = compiled(function, inner, monkeypatch)
    found, right = ([*r] if isinstance(r, tuple) else [r] for r in (run(*mine), function(*exact)))
    assert onepass.reports()[-1].regions[0].backward.startswith("derived")
    gradients = torch.autograd.grad(sum((x * x).sum() for x in found), mine)
    for one, other in zip(gradients, torch.autograd.grad(sum((x * x).sum() for x in right), exact), strict=True):
        torch.testing.assert_close(one.double(), other, atol=1e-4, rtol=0)
    for one, other in zip(found, right, strict=True):
        torch.testing.assert_close(one.double(), other, atol=1e-4, rtol=0)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("function, many", [(copied_before, 2), (untouched, 0)])
def test_only_what_is_changed_is_copied(function, many, monkeypatch):
    """The first one has a copy of its own."""
    run, copies = compiled(function, "inductor", monkeypatch)
    run(*[torch.randn(2, n, 8, requires_grad=True) for n in (9, 11, 11)])
    assert len(copies) == many


def test_nothing_is_copied_without_gradients(monkeypatch):
    run, copies = compiled(copied_before, "inductor", monkeypatch)
    with torch.no_grad():
        run(*[torch.randn(2, n, 8) for n in (9, 11, 11)])
    assert len(copies) == 1

"""Losses over one product on a CUDA device, forward and backward, by plans and as onepass chooses, against float64."""

import pytest
import torch
import torch.nn.functional as F

import onepass
from onepass.api.backend import onepass_backend

pytestmark = [
    pytest.mark.usefixtures("fresh"),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def contrast(x, w, y):
    score = (x @ w.T).float() * 14.3
    return (score.logsumexp(0).sum() + score.logsumexp(1).sum() - 2 * score.diagonal().sum()) / len(x)


def clip(x, w, y):
    score, labels = x @ w.T * 14.3, torch.arange(len(x), device=x.device)
    return F.cross_entropy(score.float(), labels) + F.cross_entropy(score.T.float(), labels)


def of_a_layer(x, w, y):
    return F.cross_entropy(F.linear(x, w).float() * 14.3, y, ignore_index=7)


def with_gradients(run, given):
    tensors = [t.detach().requires_grad_(t.is_floating_point()) for t in given]
    loss = run(*tensors)
    return [loss.detach(), *torch.autograd.grad(loss, tensors[:2])]


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("inner", ["eager", "inductor"])
@pytest.mark.parametrize(("rows", "columns", "width"), [(2048, 2048, 64), (1700, 3000, 128), (16384, 16384, 128)])
@pytest.mark.parametrize("function", [contrast, clip, of_a_layer])
def test_losses_and_gradients(function, rows, columns, width, inner, deterministic):
    torch.manual_seed(0)
    columns = rows if function is clip else columns
    x, w = (F.normalize(torch.randn(n, width, device="cuda"), dim=-1).bfloat16() for n in (rows, columns))
    given = x, w, torch.randint(columns, (rows,), device="cuda")
    options = {"inner": inner, "strict": True, "deterministic": deterministic}
    run = torch.compile(function, backend=onepass_backend, dynamic=False, options=options)
    for _ in range(3):
        found = with_gradients(run, given)
    assert inner == "inductor" or onepass.reports()[-1].fused
    exact = with_gradients(function, [t.double() if t.is_floating_point() else t for t in given])
    eager = with_gradients(function, given)
    for mine, own, right in zip(found, eager, exact, strict=True):
        off = lambda one, right=right: float((one.double() - right).norm() / right.norm())
        assert off(mine) <= 2 * off(own) + 4e-3


@pytest.mark.parametrize(("rows", "columns", "width"), [(4096, 32000, 2048), (2100, 50257, 768), (8192, 8192, 768)])
@pytest.mark.parametrize("function", [clip, of_a_layer])
def test_wide_layers_where_memory_is_preferred(function, rows, columns, width):
    """The products run by torch, in parts of a dim: no step takes memory of rows by columns."""
    torch.manual_seed(0)
    columns = rows if function is clip else columns
    x, w = (F.normalize(torch.randn(n, width, device="cuda"), dim=-1).bfloat16() for n in (rows, columns))
    given = x, w, torch.randint(columns, (rows,), device="cuda")
    options = {"prefer": "memory", "strict": True}
    run = torch.compile(function, backend=onepass_backend, dynamic=False, options=options)
    for _ in range(2):
        with_gradients(run, given)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    found = with_gradients(run, given)
    taken = torch.cuda.max_memory_allocated() - before - sum(t.numel() * t.element_size() for t in found)
    assert taken < max(2 * rows * columns, 200 << 20)  # bytes of bfloat16 scores
    assert onepass.reports()[-1].fused and "torch's products" in str(onepass.reports()[-1])
    eager = with_gradients(function, given)
    exact = with_gradients(function, [t.double() if t.is_floating_point() else t for t in given])
    for mine, own, right in zip(found, eager, exact, strict=True):
        off = lambda one, right=right: float((one.double() - right).norm() / right.norm())
        assert off(mine) <= 2 * off(own) + 4e-3

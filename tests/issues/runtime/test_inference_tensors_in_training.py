"""A mask that an evaluation under inference_mode had made, or a backward called under it, raised in training: autograd
saves no such tensor. And a table whose gradient is sparse could not be copied into a dense one."""

import math

import torch

import onepass
from onepass.api.backend import onepass_backend


def compiled(function):
    torch._dynamo.reset()
    return torch.compile(function, backend=onepass_backend, options={"inner": "eager", "executor": "tiled"})


def inputs():
    torch.manual_seed(0)
    return [x.requires_grad_() for x in torch.randn(3, 1, 2, 12, 16)]


def attention(q, k, v):
    return torch.softmax(q @ k.mT / 4, -1) @ v


class Cached(torch.nn.Module):
    """Makes its mask in its first call."""

    mask = None

    def forward(self, q, k, v):
        if self.mask is None:
            later = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool).triu(1)
            self.mask = torch.zeros(later.shape).masked_fill(later, -math.inf)
        return torch.softmax(q @ k.mT + self.mask, -1) @ v


def test_a_mask_made_under_inference_mode_serves_training(fresh):
    found = []
    for change in (lambda f: f, compiled):
        module, own = change(Cached()), inputs()
        with torch.inference_mode():
            module(*own)
        module(*own).square().sum().backward()
        found.append([x.grad for x in own])
    for eager, mine in zip(*found, strict=True):
        torch.testing.assert_close(mine, eager, atol=1e-4, rtol=1e-4)
    assert any(report.regions for report in onepass.reports())


def test_a_backward_under_inference_mode():
    found = []
    for function in (attention, compiled(attention)):
        own = inputs()
        total = function(*own).sum()
        with torch.inference_mode():
            total.backward()
        found.append([x.grad for x in own])
    for eager, mine in zip(*found, strict=True):
        torch.testing.assert_close(mine, eager)


def test_a_sparse_gradient_stays_sparse(fresh):
    found = []
    for change in (lambda f: f, compiled):
        torch.manual_seed(0)
        table, own, places = torch.nn.Embedding(23, 2, sparse=True), inputs(), torch.arange(12)
        apart = places[:, None] - places + 11
        function = change(lambda q, k, v, t=table, at=apart: torch.softmax(q @ k.mT + t(at).permute(2, 0, 1), -1) @ v)
        function(*own).square().sum().backward()
        found.append([table.weight.grad, *(x.grad for x in own)])
    (eager, *others), (mine, *own) = found
    assert mine.is_sparse
    torch.testing.assert_close(mine.to_dense(), eager.to_dense(), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(own, others, atol=1e-4, rtol=1e-4)
    assert any(report.regions for report in onepass.reports())  # with the bias as a tensor that is given

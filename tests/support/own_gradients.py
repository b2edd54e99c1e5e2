"""Compares a compiled function with eager in float64: results, who requires grad, gradients and who has none."""

import torch

from onepass.api.backend import onepass_backend
from onepass.report import records

WAYS = {"eager": {"inner": "eager", "executor": "tiled"}, "inductor": {}}


def heads(rows=40):
    torch.manual_seed(0)
    return [torch.randn(2, 3, rows, 16) for _ in range(3)]


def attend(q, k, v):
    return torch.softmax(q @ k.mT / 4, -1) @ v


def like_eager(function, *given, way="eager", requires=None):
    """The report of the graph. given: float tensors require grad, of as many as `requires` says."""
    kept = len(given) if requires is None else requires
    copies = lambda kind: [
        x.to(kind if x.is_floating_point() else x.dtype, copy=True).requires_grad_(x.is_floating_point() and k < kept)
        for k, x in enumerate(given)
    ]
    mine, exact = copies(torch.float32), copies(torch.float64)
    torch._dynamo.reset()
    run = torch.compile(function, backend=onepass_backend, options={"strict": True, **WAYS[way]})
    found, wanted = as_tuple(run(*mine)), as_tuple(function(*exact))
    assert [r.requires_grad for r in found] == [r.requires_grad for r in wanted]
    for results in (found, wanted):
        sum(r.cos().sum() for r in results if r.requires_grad).backward()
    near = dict(check_dtype=False, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(found, wanted, **near)
    assert [x.grad is None for x in mine] == [x.grad is None for x in exact]
    for a, b in zip(mine, exact, strict=True):
        torch.testing.assert_close(a.grad, b.grad, **near)
        torch.testing.assert_close(a, b, **near)
    return records.reports()[-1]


def as_tuple(results):
    return results if isinstance(results, tuple) else (results,)


def fused(found) -> int:
    return sum(region.count for region in found.regions)

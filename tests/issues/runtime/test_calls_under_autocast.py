"""A region's types are all said, but what ran it multiplied by autocast's: the backward that recomputes was not a
number where the forward had switched autocast off, and products that the plan makes of sums lost their float32."""

import pytest
import torch

from onepass.api.backend import onepass_backend


def compiled(function):
    torch._dynamo.reset()
    options = {"inner": "eager", "executor": "tiled", "strict": True, "libraries": False}
    return torch.compile(function, backend=onepass_backend, options=options)


def large(q, k, v):
    return torch.softmax((q @ k.mT) / 300.0, -1) @ v


def by_broadcasting(q, k, v):
    score = (q[..., :, None, :] * k[..., None, :, :]).sum(-1) / 4
    return (torch.softmax(score, -1)[..., None] * v[..., None, :, :]).sum(-2)


def by_distance(q, k, v):
    return torch.softmax(-torch.cdist(q, k), -1) @ v


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_gradients_of_a_forward_without_autocast_are_those_of_float32(dtype):
    torch.manual_seed(0)
    given = (*(100 * torch.randn(2, 1, 2, 12, 8)), torch.randn(1, 2, 12, 8))
    q, k, v = (x.clone().requires_grad_() for x in given)
    with torch.autocast("cpu", dtype=dtype):
        with torch.autocast("cpu", enabled=False):
            result = compiled(large)(q, k, v)
        result.sin().sum().backward()
    exact = [x.double().requires_grad_() for x in given]
    large(*exact).sin().sum().backward()
    for mine, wanted in zip((q, k, v), exact, strict=True):
        torch.testing.assert_close(mine.grad.double(), wanted.grad, rtol=1e-4, atol=1e-4)


def test_what_autocast_leaves_alone_stays_in_float32():
    torch.manual_seed(0)
    inputs = torch.randn(3, 1, 2, 64, 16).unbind(0)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        result = compiled(by_broadcasting)(*inputs)
    exact = by_broadcasting(*(x.double() for x in inputs))
    assert result.dtype == torch.float32 and (result - exact).abs().max() < 1e-5


def test_distances_are_fused_under_autocast(fresh):
    import onepass

    torch.manual_seed(0)
    inputs = torch.randn(3, 1, 2, 40, 16).unbind(0)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        result, eager = compiled(by_distance)(*inputs), by_distance(*inputs)
    torch.testing.assert_close(result, eager, atol=3e-2, rtol=3e-2)
    (report,) = onepass.reports()
    assert len(report.regions) == 1 and not report.refusals

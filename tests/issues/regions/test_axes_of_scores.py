"""Scores whose axes were moved counted as mixed heads, and nothing was said; a norm's head dim stayed a symbol, and
what it made was stored with rows times columns.
"""

import pytest
import torch

import onepass
from onepass.api.backend import onepass_backend


def moved_after(q, k, v):
    weights = torch.einsum("bihc,bjhc->bijh", q, k).softmax(2)
    return torch.matmul(weights.movedim(3, 1), v.permute(0, 2, 1, 3))


def moved_before(q, k, v):
    weights = torch.einsum("bihc,bjhc->bijh", q, k).moveaxis(-1, 1).softmax(-1)
    return torch.matmul(weights, v.permute(0, 2, 1, 3))


def moved_together(q, k, v):
    scores = torch.einsum("bihc,bjhc->ijbh", q, k).movedim((2, 3), (0, 1))
    return torch.matmul(scores.softmax(-1), v.movedim(1, 2))


def run(function, tensors, **options):
    torch._dynamo.reset()
    given = {"inner": "eager", "executor": "tiled", "strict": True, "libraries": False}
    with torch.no_grad():
        return torch.compile(function, backend=onepass_backend, options=given, **options)(*tensors)


@pytest.mark.parametrize("function", [moved_after, moved_before, moved_together])
def test_moved_axes_are_known(function):
    tensors = [torch.randn(2, 20, 3, 16) for _ in range(3)]
    torch.testing.assert_close(run(function, tensors), function(*tensors), rtol=1e-4, atol=1e-5)
    assert len(onepass.reports()[-1].regions) == 1


def norm(q, k, v):
    return torch.softmax(-(q[:, :, None] - k[:, None]).norm(dim=-1), -1) @ v


def test_the_width_under_a_norm_is_a_number():
    tensors = [torch.randn(2, rows, 16) for rows in (20, 30, 30)]
    torch.testing.assert_close(run(norm, tensors, dynamic=True), norm(*tensors), rtol=1e-4, atol=1e-5)
    (region,) = onepass.reports()[-1].regions
    assert len(region.kernels) == 1

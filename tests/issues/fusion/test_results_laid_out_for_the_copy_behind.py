"""Heads moved back beside their columns were copied behind every kernel, though a kernel writes by any strides."""

import math

import pytest
import torch

from onepass import process_state
from onepass.api.backend import onepass_backend


def _heads(q, k, v):
    return torch.softmax(q @ k.mT / math.sqrt(q.shape[-1]), -1) @ v


def _contiguous(q, k, v):
    return _heads(q, k, v).transpose(1, 2).contiguous().view(q.shape[0], q.shape[2], -1)


def _reshaped(q, k, v):
    return _heads(q, k, v).transpose(1, 2).reshape(q.shape[0], q.shape[2], -1) * 2


def _flattened(q, k, v):
    return _heads(q, k, v).permute(2, 0, 1, 3).flatten(2)


def _moved_twice(q, k, v):
    return _heads(q, k, v).transpose(-2, -3).transpose(0, 1).reshape(-1, q.shape[1] * q.shape[3])


def _used_twice(q, k, v):
    attended = _heads(q, k, v)
    return attended, attended.transpose(1, 2).contiguous()


def _returned_moved(q, k, v):
    moved = _heads(q, k, v).transpose(1, 2)
    return moved, moved.reshape(q.shape[0], q.shape[2], -1)


def _split(q, k, v):
    """A reshape that is a view: its strides are eager's."""
    return _heads(q, k, v).transpose(1, 2).reshape(q.shape[0], q.shape[2], q.shape[1], 2, -1)


def _changed(q, k, v):
    return _heads(q, k, v).transpose(1, 2).contiguous().mul_(2)


# Whether a copy is left.
COPIED = {
    _contiguous: False,
    _reshaped: False,
    _flattened: False,
    _moved_twice: False,
    _used_twice: True,
    _returned_moved: True,
    _split: False,
    _changed: False,
}


def _inputs(length=9):
    torch.manual_seed(0)
    return [torch.randn(2, 3, n, 8) for n in (length, 11, 11)]


def _compiled(function, dynamic):
    torch._dynamo.reset()
    process_state.forget("reports")
    options = {"strict": True, "inner": "eager", "executor": "tiled"}
    return torch.compile(function, backend=onepass_backend, options=options, dynamic=dynamic)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("function", COPIED)
def test_nothing_is_copied_behind_the_kernel(function):
    fused, inputs = _compiled(function, False), _inputs()
    fused(*inputs)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        fused(*inputs)
    region = next(e for e in profile.events() if "onepass::region" in e.name)
    behind = [e.name for e in profile.events() if e.time_range.start >= region.time_range.end]
    assert ("aten::clone" in behind) == COPIED[function]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("function", COPIED)
def test_it_computes_the_same_with_the_same_strides(function, dynamic):
    fused = _compiled(function, dynamic)
    for length in (9, 6):
        mine, eager = fused(*_inputs(length)), function(*_inputs(length))
        for one, other in zip(*((x if isinstance(x, tuple) else (x,)) for x in (mine, eager)), strict=True):
            torch.testing.assert_close(one, other)
            assert one.stride() == other.stride()


def test_gradients_are_the_same():
    mine, eager = ([x.requires_grad_() for x in _inputs()] for _ in range(2))
    _compiled(_contiguous, False)(*mine).square().sum().backward()
    _contiguous(*eager).square().sum().backward()
    for one, other in zip(mine, eager, strict=True):
        torch.testing.assert_close(one.grad, other.grad)

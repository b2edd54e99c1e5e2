"""A launch runs on its tensors' device, and new tensors are as asked for. Where a GPU is needed, torch is replaced."""

from contextlib import contextmanager

import pytest
import torch

from onepass.lowering.launch.current_device import allocator, on_device, turned_allocator


@pytest.mark.parametrize("current", [0, 1])
def test_a_launch_runs_with_its_device_as_the_current_one(current, monkeypatch):
    now = [current]

    @contextmanager
    def device(wanted):
        now.append(wanted.index)
        yield
        now.pop()

    monkeypatch.setattr(torch.cuda, "current_device", lambda: now[-1])
    monkeypatch.setattr(torch.cuda, "device", device)
    seen = on_device(torch.device("cuda", 1), lambda tensors: (now[-1], tensors))
    assert seen(["x"]) == (1, ["x"])
    assert now == [current]


def test_a_launch_on_a_cpu_is_left_as_it_is():
    run = len
    assert on_device(torch.device("cpu"), run) is run


@pytest.mark.parametrize("quick", [True, False])
def test_new_tensors_have_the_shape_and_strides_asked_for(quick, monkeypatch):
    device = torch.device("cuda", 0) if quick else torch.device("cpu")
    calls = []
    keep = lambda *given: calls.append(given)
    monkeypatch.setattr(torch._C._dynamo.guards, "_empty_strided_cuda", keep, raising=False)
    found = allocator((2, 3), [1, 2], torch.float16, device)()
    if quick:
        assert calls == [((2, 3), (1, 2), torch.float16)]
    else:
        assert (found.shape, found.stride(), found.dtype, calls) == ((2, 3), (1, 2), torch.float16, [])


@pytest.mark.parametrize("order", [None, (0, 2, 1), (2, 0, 1)])
def test_axes_that_a_plan_has_turned_are_turned_back(order):
    memory = torch.empty(2, 3, 5)
    turned = memory if order is None else memory.permute(order)
    found = turned_allocator(turned.shape, turned.stride(), torch.float16, torch.device("cpu"), order)()
    assert (found.shape, found.stride(), found.dtype) == (memory.shape, memory.stride(), torch.float16)

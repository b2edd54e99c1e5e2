"""A launch runs on its tensors' device, and new tensors are as asked for. Where a GPU is needed, torch is replaced."""

from contextlib import contextmanager

import pytest
import torch

from onepass.lowering.launch.current_device import allocator, on_device


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

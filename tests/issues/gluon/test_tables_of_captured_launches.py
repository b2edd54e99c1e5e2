"""A captured graph holds the address of a launch's table of work. It crashed, or ran other items, once the launch was
gone: after more kinds of calls than are kept ready, or when a process forgot its regions.
"""

import gc
import math
import weakref

import pytest
import torch

from onepass import process_state
from onepass.api.backend import onepass_backend
from onepass.lowering.gluon.launch import GluonLaunch
from onepass.lowering.masks import block_map


class _Kernel:
    """Stands for a compiled function: takes what it is launched with, and keeps none of it."""

    def __getitem__(self, grid):
        return lambda *arguments, **options: None


@pytest.mark.sampled(1)
@pytest.mark.parametrize("captured", [True, False])
def test_a_captured_launch_leaves_its_table(monkeypatch, captured):
    monkeypatch.setattr(block_map, "capturing", lambda device: captured)
    monkeypatch.setattr(block_map, "_OF_GRAPHS", {})
    monkeypatch.setattr("onepass.lowering.gluon.launch.Relaunch", lambda *_: None)
    table = torch.arange(8, dtype=torch.int32)
    launch, there = GluonLaunch(_Kernel(), 1, (), ("q", table, 8)), weakref.ref(table)
    launch.run({"q": torch.ones(3)})
    del launch, table
    gc.collect()
    assert (there() is not None) is captured


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@torch.no_grad()
def test_a_graph_runs_after_its_region_is_forgotten():
    def causal(q, k, v):
        keep = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).tril()
        return torch.softmax((q @ k.mT / 8).masked_fill(~keep, -math.inf), -1) @ v

    inputs = [torch.randn(2, 4, 1024, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3)]
    graphs, wanted = [], []
    for _ in range(2):
        process_state.forget()
        torch._dynamo.reset()
        compiled = torch.compile(causal, backend=onepass_backend, dynamic=False, options={"strict": True})
        wanted.append(compiled(*inputs))
        torch.cuda.synchronize()
        graphs.append(torch.cuda.CUDAGraph())
        with torch.cuda.graph(graphs[-1]):
            result = compiled(*inputs)
        wanted[-1] = (wanted[-1], result)
    del compiled
    gc.collect()
    others = [torch.full((1 << n,), 1 << 20, dtype=torch.int32, device="cuda") for n in range(4, 24)]
    for graph, (right, result) in zip(graphs, wanted, strict=True):
        result.zero_()
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(result, right)
    assert others

"""One kernel that reads a map of tiles kept a whole plan from being compiled ahead: a cross entropy waited for ptxas.

Its kernels are known by sizes alone, but those in Hopper's form whose settings depend on what a mask keeps.
"""

from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F

from onepass.compiler.optimize import optimize_all
from onepass.graph.trace import program_of
from onepass.lowering.executors import GLUON, TRITON
from onepass.lowering.gluon import launch as gluon_launch
from onepass.lowering.launch import triton_compat
from onepass.lowering.launch.triton_compat import gluon_missing
from onepass.lowering.triton import launch as triton_launch
from onepass.translate.translate import translate

NAMES = "architecture", "shared_memory", "multiprocessors", "require_suited"
KNOWN = {"architecture": "sm_90", "shared_memory": 2**18, "multiprocessors": 132}


def cross_entropy(x, w, y):
    return F.cross_entropy((x @ w.T).float(), y)


def padded(q, k, v, keep):
    return torch.softmax((q @ k.mT / 8).masked_fill(~keep[:, None, None], -torch.inf), -1) @ v


def halves(*sizes):
    return torch.empty(*sizes, dtype=torch.bfloat16)


OF_WORDS = [halves(4096, 1024), halves(32000, 1024), torch.zeros(4096, dtype=torch.int64)]
OF_HEADS = [*(halves(2, 8, 4096, 64) for _ in range(3)), torch.ones(2, 4096, dtype=torch.bool)]


@pytest.fixture
def compiled(monkeypatch):
    """The names of kernels that would be compiled. No device is here, and nothing is compiled."""
    for module in (triton_launch, gluon_launch):
        for name in NAMES:
            monkeypatch.setattr(module, name, lambda *given, name=name: KNOWN.get(name), raising=False)
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    monkeypatch.setattr(triton_compat, "make_launcher", lambda kernel: None)
    found = []
    monkeypatch.setattr(triton_launch.Launch, "compiled", lambda one, values: found.append(one.function.__name__))
    monkeypatch.setattr(gluon_launch.GluonLaunch, "compiled", lambda one, values: found.append("gluon"))
    return found


@pytest.mark.skipif(gluon_missing() is not None, reason="needs Gluon")
@pytest.mark.parametrize("executor", [TRITON, GLUON])
@pytest.mark.parametrize(
    ("function", "given", "in_triton", "in_gluon"),
    [
        (cross_entropy, OF_WORDS, ["kernel0_merged", "kernel0_parts", "kernel1_merged", "kernel1_parts"], None),
        (padded, OF_HEADS, ["kernel0"], []),
    ],
)
def test_which_kernels_are_compiled_ahead(compiled, executor, function, given, in_triton, in_gluon):
    captured = translate(program_of(function, *given))
    plan = optimize_all(captured.results).plan
    assert any(loop.map is not None for kernel in plan.kernels for loop in kernel.loops)
    tensors = {t.name: x.to("meta") for t, x in zip(captured.inputs, given, strict=True)}
    executor.compile_ahead(plan, {t.name: tensors[t.name] for t in plan.inputs}, torch.device("cuda", 0), {})
    assert sorted(compiled) == (in_triton if executor is TRITON or in_gluon is None else in_gluon)

"""A kernel that another process compiled is found in the cache of Triton: it is the same, and nothing is compiled here.

There is no GPU: a stand-in for the driver says that one of Hopper is there, in a process without the interpreter.
"""

import json
import subprocess
import sys
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace

import pytest
import torch

from onepass.lowering.launch import kernel_functions
from tests.support.gluon_ahead_of_time import ROOT, backward_plan_of, plan_of, without_interpreter

KINDS = {
    "plain": ("triton", plan_of, True),
    "gluon": ("gluon", plan_of, True),
    "joined": ("gluon", backward_plan_of, True),
    "by a call": ("triton", backward_plan_of, False),
}


def _compiled(executor, plan, ahead):
    """(hashes of the kernels, stages of compilation that ran here) of all kernels of a plan. ahead: of a call."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.backends.nvidia import compiler

    from onepass.lowering.joined import launch as joined_launch
    from onepass.lowering.triton import launch

    target = GPUTarget("cuda", 90, 32)
    stream = {"get_current_device": int, "get_current_stream": int}
    triton.runtime.driver.set_active(SimpleNamespace(get_current_target=lambda: target, **stream))
    torch.cuda.get_device_capability = lambda _: (9, 0)
    torch.cuda.get_device_properties = lambda _: SimpleNamespace(multi_processor_count=132)
    torch.cuda.device = lambda _: nullcontext()
    hashes, stages = [], []
    launch.make_launcher = lambda kernel: hashes.append(kernel.hash)
    add = compiler.CUDABackend.add_stages

    def seen(backend, known, *rest):
        add(backend, known, *rest)
        noted = lambda name, stage, *given: (stages.append(name), stage(*given))[1]
        known.update({name: partial(noted, name, stage) for name, stage in known.items()})

    compiler.CUDABackend.add_stages = seen
    made = launch.launcher(plan) if executor == "triton" else joined_launch.launcher(plan)
    tensors = [torch.empty(t.shape, dtype=getattr(torch, t.dtype), device="meta") for t in plan.inputs]
    names, device = [t.name for t in plan.inputs], torch.device("cuda", 0)
    if ahead:
        made.compile_ahead(names, tensors, {}, {}, device)
    else:
        kernels, sizes = made._stages({}, device)
        written = launch._without_memory(made._made(kernels, sizes, {}))
        seen = launch._as_stored(kernels, {**dict(zip(names, tensors, strict=True)), **written}, sizes)
        made._compile_together(kernels, seen, sizes, device)
    return sorted(hashes), stages


def main(kind, in_processes):
    kernel_functions.cores = lambda: kernel_functions.LEAST_CORES if in_processes else 1
    executor, plan, ahead = KINDS[kind]
    print(json.dumps(_compiled(executor, plan("causal", 64), ahead)))


def _run(kind, in_processes, cache):
    environment = {**without_interpreter(), "TRITON_CACHE_DIR": str(cache)}
    code = f"from tests.lowering.launch.test_kernel_functions import main; main({kind!r}, {in_processes})"
    done = subprocess.run([sys.executable, "-c", code], env=environment, cwd=ROOT, capture_output=True, text=True)
    assert not done.returncode, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("kind", KINDS)
def test_another_process_compiles_the_same_kernels(kind, tmp_path):
    hashes, stages = _run(kind, True, tmp_path / "there")
    assert hashes and not stages
    here, own = _run(kind, False, tmp_path / "here")
    assert here == (hashes if KINDS[kind][-1] else [])  # with few cores a call compiles one after the other
    assert own.count("cubin") == len(here)


def test_a_process_that_fails_leaves_the_kernel_to_this_one(tmp_path, monkeypatch):
    monkeypatch.setattr(kernel_functions, "_have_compiled", lambda *_: 1 / 0)
    monkeypatch.setattr(kernel_functions, "cores", lambda: 16)
    calls = []
    function = type("Function", (), {"__name__": "kernel0", "ASTSource": lambda *_: None})()
    function.device_caches = {0: (None, None, "target")}
    options = type("Settings", (), {})()
    with kernel_functions.in_processes():
        kernel_functions._compile(function, lambda *given: calls.append(given), "", "key", {}, 0, {}, options, {}, True)
    assert calls == [("key", {}, 0, {}, options, {}, True)]


@pytest.mark.parametrize("cores, expected", [(2, False), (4, True)])
def test_processes_are_asked_only_where_there_are_cores_for_them(cores, expected, monkeypatch):
    monkeypatch.setattr(kernel_functions, "cores", lambda: cores)
    with kernel_functions.in_processes():
        assert kernel_functions._IN_PROCESSES.get() is expected
    assert kernel_functions._IN_PROCESSES.get() is False


@pytest.mark.parametrize("cores", [2, 16])
def test_work_side_by_side_is_all_done_and_its_error_is_raised(cores, monkeypatch):
    monkeypatch.setattr(kernel_functions, "cores", lambda: cores)
    done = []
    with kernel_functions.in_processes():
        kernel_functions.side_by_side(done.append, range(5))
        with pytest.raises(ZeroDivisionError):
            kernel_functions.side_by_side(lambda n: 1 // n, [1, 0])
    assert sorted(done) == [*range(5)]

"""Which kernels are compiled ahead, and that they are compiled for what is called later. No kernel is compiled here."""

import pytest
import torch

import onepass
from onepass.lowering.executors import EXECUTORS, PlanExecutor
from onepass.runtime import background, compile_ahead, executors, runner

pytestmark = pytest.mark.usefixtures("fresh")


class Called(PlanExecutor):
    """Notes what it is asked to compile, and what is called afterwards; runs tile by tile."""

    name = "tiled"

    def __init__(self):
        self.ahead, self.called = [], []

    def compile_ahead(self, plan, tensors, device, sizes, strides=None, store=None, deterministic=False):
        self.ahead.append((plan, kinds(tensors), dict(sizes), strides))
        assert {x.device.type for x in tensors.values()} == {"meta"}

    def prepare(self, plan, tensors, sizes, strides=None, store=None, deterministic=False):
        self.called.append((plan, kinds(tensors), dict(sizes), strides))
        return tiled.prepare(plan, tensors, sizes, strides, store, deterministic)


tiled = EXECUTORS["tiled"]


def kinds(tensors):
    return {name: (x.shape, x.stride(), x.dtype) for name, x in tensors.items()}


@pytest.fixture
def asked(monkeypatch, tmp_path):
    """An executor in the place of the tiled one, on a CPU in the place of a GPU."""
    found = Called()
    monkeypatch.setitem(executors.plan_executors.EXECUTORS, "tiled", found)
    monkeypatch.setitem(executors.EXECUTORS, "tiled", executors.of_plan(found))
    monkeypatch.setattr(executors, "KERNELS", ("tiled",))
    monkeypatch.setattr(compile_ahead, "DEVICE", "cpu")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))  # an earlier run's graph asks for nothing
    return found


def causal(q, k, v):
    score = q @ k.mT / 8
    place = torch.arange(score.shape[-1])
    return torch.softmax(score.masked_fill(place[:, None] < place, -torch.inf), -1) @ v


def inputs(length=300, requires_grad=True):
    return [torch.randn(2, 3, length, 16, requires_grad=requires_grad) for _ in range(3)]


def compiled(function=causal, **given):
    return torch.compile(function, backend="onepass", **given)


def finished():
    for key in tuple(background.COMPILES._known):
        background.COMPILES.finish(key)


WAYS = {"backend": {"backend": "onepass"}, "pass": {"options": {"pre_grad_custom_pass": onepass.GraphPass()}}}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_forward_and_backward_are_compiled_for_the_tensors_that_come(asked, way):
    result = torch.compile(causal, dynamic=False, **way)(*inputs())
    finished()
    assert len(asked.ahead) == 2 and len(asked.called) == 1
    result.sum().backward()
    by_names = lambda calls: sorted(calls, key=lambda call: len(call[1]))
    for ahead, called in zip(by_names(asked.ahead), by_names(asked.called), strict=True):
        assert ahead == called


def test_without_gradients_the_forward_alone_is_compiled(asked):
    with torch.no_grad():
        compiled(dynamic=False)(*inputs())
    finished()
    assert asked.ahead == asked.called


def test_equal_regions_are_compiled_once(asked):
    compiled(lambda q, k, v: causal(q, k, causal(q, k, v)), dynamic=False)(*inputs(requires_grad=False))
    finished()
    assert len(asked.ahead) == 1


def test_nothing_is_compiled_for_unknown_sizes(asked):
    compiled(dynamic=True)(*inputs(requires_grad=False))
    finished()
    assert asked.ahead == []


def test_nothing_is_compiled_on_another_device(asked, monkeypatch):
    monkeypatch.setattr(compile_ahead, "DEVICE", "cuda")
    compiled(dynamic=False)(*inputs())
    finished()
    assert asked.ahead == []


def test_a_region_that_a_rival_runs_is_not_compiled(asked, monkeypatch):
    monkeypatch.setattr(runner.library_choice, "size_class", lambda device, sizes: "here")
    monkeypatch.setattr(runner.Measured, "read", lambda key: runner.Measured(set(), {"here": ("a rival", 0.5)}, {}))
    compiled(dynamic=False)(*inputs(requires_grad=False))
    finished()
    assert asked.ahead == []


def test_a_failure_ahead_is_no_failure_of_the_call(asked, monkeypatch):
    monkeypatch.setattr(asked, "compile_ahead", None)
    q, k, v = inputs()
    result = compiled(dynamic=False)(q, k, v)
    torch.testing.assert_close(result, causal(q, k, v))
    monkeypatch.setattr(compile_ahead, "value_of_node", None)
    torch._dynamo.reset()
    torch.testing.assert_close(compiled(dynamic=False)(q, k, v), causal(q, k, v))


@pytest.mark.parametrize("is_used", [False, True])
def test_the_compiler_is_loaded_where_a_gpu_is_used(is_used, monkeypatch):
    started = []
    monkeypatch.setattr(background.COMPILES, "start", lambda *given: started.append(given))
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: is_used)
    compile_ahead.start_compiler()
    assert started == [(background.START, compile_ahead.load_triton)] * is_used

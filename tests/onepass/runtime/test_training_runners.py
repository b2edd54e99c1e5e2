"""A forward that cannot run by its plan leaves its backward to autograd; so do sizes that no plan takes."""

import os
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import onepass
from onepass.api import backend
from onepass.lowering.executors import TILED
from onepass.lowering.masks import block_map
from onepass.lowering.triton import launch
from onepass.runtime import executors, library_choice, training_operator, training_runners
from onepass.runtime.runner import ExecutorError
from onepass.training import plans

pytestmark = pytest.mark.usefixtures("fresh")


def attention(q, k, v):
    return torch.softmax(q @ k.mT, -1) @ v


def gradients(function, n, m):
    torch.manual_seed(0)
    leaves = [torch.randn(2, length, 8, requires_grad=True) for length in (n, m, m)]
    result = function(*leaves)
    return torch.autograd.grad(result, leaves, torch.ones_like(result))


def broken(found, tensors, call):
    raise RuntimeError("broken")


def test_a_forward_without_a_plan_is_followed_by_autograd(monkeypatch):
    compiled = torch.compile(attention, backend="onepass", options={"inner": "eager"})
    right = gradients(attention, 40, 300)
    torch.testing.assert_close(gradients(compiled, 40, 300), right)
    training_operator._FORWARDS.clear(), training_operator._BACKWARDS.clear()
    monkeypatch.setitem(executors.EXECUTORS, "tiled", broken)
    torch.testing.assert_close(gradients(compiled, 40, 300), right)
    (region,) = onepass.reports()[-1].regions
    assert any("executor tiled failed" in note for note in region.notes)
    monkeypatch.undo()  # what was not saved is not read, even if plans run again
    torch.testing.assert_close(gradients(compiled, 40, 300), right)


def test_a_backward_without_a_plan_asks_autograd(monkeypatch):
    compiled = torch.compile(attention, backend="onepass", options={"inner": "eager"})
    torch.manual_seed(0)
    leaves = [torch.randn(2, length, 8, requires_grad=True) for length in (40, 300, 300)]
    result = compiled(*leaves)
    monkeypatch.setitem(executors.EXECUTORS, "tiled", broken)
    found = torch.autograd.grad(result, leaves, torch.ones_like(result))
    torch.testing.assert_close(found, gradients(attention, 40, 300))
    (region,) = onepass.reports()[-1].regions
    assert region.backward_ran == executors.ORIGINAL


class Telling(type(TILED)):
    """An executor that says something of each plan."""

    def prepare(self, plan, *rest):
        outputs = ", ".join(output.name for output in plan.outputs)
        return replace(super().prepare(plan, *rest), notes=(f"computes {outputs}",))


def test_what_an_executor_says_of_a_backward_is_in_the_regions_report(monkeypatch):
    monkeypatch.setitem(executors.EXECUTORS, "tiled", executors.of_plan(Telling()))
    compiled = torch.compile(attention, backend="onepass", options={"inner": "eager", "executor": "tiled"})
    gradients(compiled, 40, 300)
    (region,) = onepass.reports()[-1].regions
    assert sum(note.startswith("computes ") for note in region.notes) == 2, "of the forward and of the backward"


@pytest.mark.sampled(1)
@pytest.mark.parametrize("lengths", [(0, 300), (40, 0), (0, 0)])
def test_empty_lengths_have_eagers_gradients(lengths):
    compiled = torch.compile(attention, backend="onepass", options={"inner": "eager"}, dynamic=True)
    torch.testing.assert_close(gradients(compiled, 40, 300), gradients(attention, 40, 300))
    torch.testing.assert_close(gradients(compiled, *lengths), gradients(attention, *lengths), equal_nan=True)


HOST_READS = ("_local_scalar_dense", "equal", "nonzero", "unique", "masked_select", "is_nonzero")


@pytest.mark.slow
@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="needs Triton's interpreter")
def test_a_prepared_call_reads_nothing_on_the_host(monkeypatch):
    """What a CUDA graph captures: also where it reads a mask of data, whose block map is made in each captured call."""
    ran: list[str] = []

    class Noting(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            ran.append(str(function))
            return function(*args, **(kwargs or {}))

    for kind in (training_operator.ForwardRunner, training_operator.BackwardRunner):

        def noted(self, *given, kind=kind, run=kind.__call__):
            ran.append(kind.__name__)
            with Noting():
                return run(self, *given)

        monkeypatch.setattr(kind, "__call__", noted)
    builds: list[tuple] = []
    monkeypatch.setattr(launch, "pays", lambda *given: True)
    monkeypatch.setattr(launch, "build_map", lambda *given, make=launch.build_map: builds.append(given) or make(*given))
    monkeypatch.setattr(block_map, "capturing", lambda device: True)

    def documents(q, k, v, ids):
        return torch.softmax((q @ k.mT).masked_fill(ids[:, None] != ids, -torch.inf), -1) @ v

    leaves, ids = [torch.randn(1, 300, 8, requires_grad=True) for _ in range(3)], torch.arange(300) // 70
    options = {"inner": "eager", "strict": True, "executor": "triton"}
    compiled = torch.compile(documents, backend="onepass", options=options)
    compiled(*leaves, ids).sum().backward()
    ran.clear(), builds.clear()
    compiled(*leaves, ids).sum().backward()
    assert {"ForwardRunner", "BackwardRunner"} < {*ran} and len(builds) == 3
    assert not [name for name in ran if name.split(".")[1:2] and name.split(".")[1].startswith(HOST_READS)]


def short_of_memory(found, tensors, call):
    raise torch.OutOfMemoryError("out of memory")


def test_a_step_without_memory_behind_another_failure_raises_and_the_next_one_is_right(monkeypatch):
    """The original calls lack memory once; when they run, no backward reads what they have not saved."""
    compiled = torch.compile(attention, backend="onepass", options={"inner": "eager", "executor": "tiled"})
    right = gradients(attention, 40, 300)
    torch.testing.assert_close(gradients(compiled, 40, 300), right)
    training_operator._FORWARDS.clear(), training_operator._BACKWARDS.clear()
    original, once = executors.original, [torch.OutOfMemoryError("out of memory")]

    def prepared(found, tensors, call):
        run = original(found, tensors, call)

        def tried(given):
            if once:
                raise once.pop()
            return run(given)

        return tried

    with monkeypatch.context() as patch:
        patch.setitem(executors.EXECUTORS, "tiled", broken)
        patch.setattr(executors, "original", prepared)
        with pytest.raises(torch.OutOfMemoryError):
            gradients(compiled, 40, 300)
    for _ in range(2):
        torch.testing.assert_close(gradients(compiled, 40, 300), right)


def test_a_step_without_memory_raises_and_the_next_one_is_derived(monkeypatch):
    compiled = torch.compile(attention, backend="onepass", options={"inner": "eager", "executor": "tiled"})
    right = gradients(attention, 40, 300)
    torch.testing.assert_close(gradients(compiled, 40, 300), right)
    training_operator._FORWARDS.clear(), training_operator._BACKWARDS.clear()
    with monkeypatch.context() as patch:
        patch.setitem(executors.EXECUTORS, "tiled", short_of_memory)
        patch.setattr(executors, "original", lambda *given: lambda tensors: short_of_memory(*given))
        with pytest.raises(torch.OutOfMemoryError):
            gradients(compiled, 40, 300)
    torch.testing.assert_close(gradients(compiled, 40, 300), right)
    (region,) = onepass.reports()[-1].regions
    assert region.backward_ran == "tiled"


# Small values on a CPU ------------------------------------------------------------------------------------------------


@pytest.fixture
def originals_are_faster(monkeypatch):
    """Says so of each measurement. The list holds what was measured."""
    measured: list[set[str]] = []

    def fastest(own, others, tensors, *_):
        measured.append({*others})
        return executors.ORIGINAL, 0.25

    monkeypatch.setattr(library_choice, "fastest", fastest)
    return measured


def steps(compiled, *lengths: int) -> list[str]:
    """Steps of training, each with right gradients; who ran the forward after each."""
    said = []
    for n in lengths:
        torch.testing.assert_close(gradients(compiled, n, n), gradients(attention, n, n))
        said.append([region.ran for report in onepass.reports() for region in report.regions][-1])
    return said


def test_a_forward_follows_its_backward_to_the_original_calls(originals_are_faster, monkeypatch):
    compiled = torch.compile(attention, backend="onepass", dynamic=True, options={"inner": "eager"})
    faster = f"{executors.ORIGINAL}, measured at 0.25 of the plan's time"
    assert steps(compiled, 40, 41, 42, 43) == ["tiled", "tiled", faster, faster]
    assert originals_are_faster == [{executors.ORIGINAL}] * 2, "of the backward, then of the forward"
    (region,) = onepass.reports()[-1].regions
    assert region.backward_ran == f"{executors.ORIGINAL}, as its forward"
    assert steps(compiled, 300) == ["tiled"], "another class of sizes"
    assert onepass.reports()[-1].regions[0].backward_ran == "tiled"
    training_operator._FORWARDS.clear(), training_operator._BACKWARDS.clear()
    monkeypatch.setitem(executors.EXECUTORS, "tiled", broken)
    assert steps(compiled, 44) == [faster], "kept on disk; nothing reads what was not saved"
    assert not any("failed" in note for note in onepass.reports()[-1].regions[0].notes)


def test_a_forward_by_its_plan_may_have_a_backward_by_the_original_calls(originals_are_faster):
    compiled = torch.compile(attention, backend="onepass", options={"inner": "eager"})
    leaves = [torch.randn(2, 40, 8, requires_grad=True) for _ in range(3)]
    early = compiled(*leaves)
    steps(compiled, 40, 40, 40)
    found = torch.autograd.grad(early, leaves, torch.ones_like(early))
    right = attention(*leaves)
    torch.testing.assert_close(found, torch.autograd.grad(right, leaves, torch.ones_like(right)))


def test_a_backward_knows_what_its_forward_did_not_save_when_plans_are_made_anew(originals_are_faster):
    compiled = torch.compile(attention, backend="onepass", options={"inner": "eager"})
    steps(compiled, 40, 40, 40)
    plans._KNOWN.clear()  # as where a process has had many other regions since
    training_operator._BACKWARDS.clear()
    steps(compiled, 40, 40)
    assert onepass.reports()[-1].regions[0].backward_ran == f"{executors.ORIGINAL}, as its forward"


@pytest.mark.sampled(1)
@pytest.mark.parametrize("options", [{"deterministic": True}, {"libraries": False}, {"executor": "tiled"}], ids=str)
def test_what_is_asked_for_is_kept(originals_are_faster, options):
    compiled = torch.compile(attention, backend="onepass", options={"inner": "eager", **options})
    assert steps(compiled, 40, 40, 40, 40) == ["tiled"] * 4 and not originals_are_faster


# Gradients beyond the end of float16, and kernels that fail ----------------------------------------------------------


def recorded_backward(monkeypatch, scale):
    """The runner of a backward in float16 with its arguments at a call: cotangents are as large as the scale."""
    calls, call = [], training_runners.BackwardRunner.__call__
    watching = lambda self, tensors, numbers: calls.append((self, tensors, numbers)) or call(self, tensors, numbers)
    monkeypatch.setattr(training_runners.BackwardRunner, "__call__", watching)
    leaves = [torch.randn(2, n, 8, dtype=torch.float16, requires_grad=True) for n in (40, 300, 300)]
    options = {"inner": "eager", "executor": "tiled"}
    result = torch.compile(lambda q, k, v: (q @ k.mT) @ v, backend="onepass", options=options)(*leaves)
    torch.autograd.grad(result, leaves, scale * torch.ones_like(result))
    ((one, tensors, numbers),) = calls
    return one, tensors, one._call(tensors, numbers)


@pytest.mark.parametrize("right", [True, False])
def test_gradients_beyond_float16_are_decided_by_smaller_cotangents(monkeypatch, right):
    """As with a loss that is scaled: which sums are infinite and which NaN is chance, and says nothing of a kernel."""
    one, tensors, call = recorded_backward(monkeypatch, 3e4)
    expected = one._expected(tensors, call)
    assert not all(x.isfinite().all() for x in expected)

    def kernel(given):
        found = one._expected(given, call)
        if all(x.isfinite().all() for x in found) and not right:
            return [1.1 * x for x in found]
        return [torch.where(x.isinf() & (x > 0), torch.nan, x) for x in found]

    if not right:
        with pytest.raises(ExecutorError, match="differs"):
            one.validate("kind", kernel, tensors, call)
        return
    results, known = one.validate("kind", kernel, tensors, call)
    assert known and "kind" in one.validated
    torch.testing.assert_close(results, expected, equal_nan=True)


def test_forward_kernels_that_failed_on_a_gpu_give_way_to_the_original_calls(monkeypatch):
    """Not to loops over tiles, which take a GPU a hundred times as long; those that lacked memory do."""
    one, _, _ = recorded_backward(monkeypatch, 1.0)
    forward = training_operator.forward_runner(*next(iter(training_operator._FORWARDS)))
    monkeypatch.setattr(forward, "preference", lambda device: (*executors.KERNELS, TILED.name))
    on_a_gpu, on_a_cpu = ([SimpleNamespace(is_cuda=cuda, device=None)] for cuda in (True, False))
    assert not forward._is_left_out(TILED.name, on_a_gpu)
    forward.broken.update(executors.KERNELS)
    assert forward._is_left_out(TILED.name, on_a_gpu) and not forward._is_left_out(TILED.name, on_a_cpu)
    assert not one._is_left_out(TILED.name, on_a_gpu)


# Calls that Inductor compiles, forward and backward -------------------------------------------------------------------


@pytest.fixture
def on_a_gpu(monkeypatch):
    """Graphs may be compiled once more. The plans' forward and backward take one second each, and a step of the calls
    as Inductor compiles them takes half a second.

    Gives a dict whose "step" sets the latter, and the list of the steps that were made.
    """
    taken, made, compiled_step = {"step": 0.5}, [], executors.compiled_step

    def step(*given):
        assert torch._C._current_graph_task_id() == -1, "autograd's own thread would wait for this step's backward"
        run = compiled_step(*given)

        def drawing_nothing(tensors):
            state = torch.get_rng_state()
            results = run(tensors)
            assert torch.equal(torch.get_rng_state(), state), "the program would draw other numbers than without it"
            return results

        made.append(drawing_nothing)
        return drawing_nothing

    def seconds(run, tensors):
        run(tensors)
        return taken["step"] if run in made else 1.0

    monkeypatch.setattr(backend, "may_recompile", lambda inputs: True)
    monkeypatch.setattr(library_choice, "rivals", lambda *_: {executors.COMPILED: executors.compiled})
    monkeypatch.setattr(library_choice, "seconds", seconds)
    monkeypatch.setattr(executors, "compiled_step", step)
    return taken, made


def codes_after_steps(compiled, count=4):
    """The gradients of several steps are right. The codes of what the first graph and the last one refuse."""
    right = gradients(attention, 40, 300)
    for _ in range(count):
        torch.testing.assert_close(gradients(compiled, 40, 300), right, rtol=1e-4, atol=1e-5)
    reports = onepass.reports()
    return [[refused.code for refused in report.refusals] for report in (reports[0], reports[-1])]


def test_a_step_that_inductor_compiles_better_is_left_to_it(on_a_gpu):
    _, made = on_a_gpu
    assert codes_after_steps(torch.compile(attention, backend="onepass")) == [[], ["OP502"]]
    assert len(made) == 1 and onepass.reports()[-1].fused == 0
    torch._dynamo.reset()
    _, codes = codes_after_steps(torch.compile(attention, backend="onepass"), 1)
    assert codes == ["OP502"], "the next process knows it"
    with torch.no_grad():
        torch.compile(attention, backend="onepass")(*(torch.randn(2, 40, 8) for _ in range(3)))
    assert onepass.reports()[-1].fused == 1, "without gradients it was not measured"


@pytest.mark.parametrize("won", [("", 1.0), (executors.ORIGINAL, 0.8)])
def test_on_a_cpu_a_step_is_timed_once_the_backward_was_compared_with_autograd(on_a_gpu, monkeypatch, won):
    """That is measured at the second backward."""
    _, made = on_a_gpu
    both = {executors.ORIGINAL: executors.original, executors.COMPILED: executors.compiled}
    monkeypatch.setattr(library_choice, "rivals", lambda *_: both)
    monkeypatch.setattr(library_choice, "fastest", lambda *_: won)
    compiled, counts = torch.compile(attention, backend="onepass"), []
    for _ in range(4):
        gradients(compiled, 40, 300)
        counts.append((len(made), onepass.reports()[-1].fused))
    assert counts == [(0, 1), (0, 1), (1, 1), (1, 0)]


@pytest.mark.parametrize("change", ["slow", "moves much", "takes much memory", "fails"])
def test_a_step_that_is_not_worth_it_leaves_the_plans(on_a_gpu, change, monkeypatch):
    taken, made = on_a_gpu
    if change == "slow":
        taken["step"] = 1.9
    elif change == "moves much":
        monkeypatch.setattr(library_choice, "least_seconds", lambda *_: {executors.COMPILED: 0.95})
    elif change == "takes much memory":
        monkeypatch.setattr(library_choice, "takes_much_memory", lambda *_: True)
    else:
        monkeypatch.setattr(executors, "compiled_step", lambda *_: broken)
    assert codes_after_steps(torch.compile(attention, backend="onepass")) == [[], []]
    assert onepass.reports()[-1].fused == 1 and len(made) == (change in ("slow", "moves much"))


def test_a_forward_that_a_checkpoint_runs_again_measures_nothing(on_a_gpu):
    """The next step's forward does."""
    _, made = on_a_gpu
    compiled = torch.compile(attention, backend="onepass", options={"inner": "eager"})
    again = lambda *given: torch.utils.checkpoint.checkpoint(compiled, *given, use_reentrant=False)
    right = gradients(attention, 40, 300)
    for _ in range(3):
        torch.testing.assert_close(gradients(again, 40, 300), right, rtol=1e-4, atol=1e-5)
    assert len(made) == 1

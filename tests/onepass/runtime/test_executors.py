"""Where no kernel runs on a GPU the original calls do, not the tiled executor's loops, and the report says why.

The GPU's chain is put in place of the CPU's: the last executor of a device is a row of a table.
"""

import math
from dataclasses import replace

import pytest
import torch

from onepass.api.backend import onepass_backend
from onepass.compiler import compiled_region, traffic
from onepass.compiler.options import Options
from onepass.graph.trace import program_of
from onepass.lowering import executors as plan_executors
from onepass.lowering.plan.records import NotPlannable, Plan
from onepass.report import records
from onepass.runtime import executors, runner

pytestmark = pytest.mark.usefixtures("fresh")


class Broken(Exception):
    pass


def broken(*_):
    raise Broken("on purpose")


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    """Kernels that fail, and behind them what a GPU has."""
    monkeypatch.setitem(executors.LAST, "cpu", executors.ORIGINAL)
    for name in ("tiled", *plan_executors.KERNELS):
        monkeypatch.setitem(executors.EXECUTORS, name, broken)


def attention(q, k, v):
    return torch.softmax(q @ k.mT / math.sqrt(q.shape[-1]), dim=-1) @ v


def with_sums(q, k, v):
    score = q @ k.mT / math.sqrt(q.shape[-1])
    return torch.softmax(score, dim=-1) @ v, torch.logsumexp(score, -1)


def linear(q, k, v):
    return (q @ k.mT) @ v


def inputs(length=40, columns=40):
    return [torch.randn(1, 2, n, 16) for n in (length, columns, columns)]


def compiled(function=attention, dynamic=None, **options):
    options = {"inner": "eager", "libraries": False, **options}
    return torch.compile(function, backend=onepass_backend, dynamic=dynamic, options=options)


CHAINS = [
    ("auto", None, ("gluon", "triton", executors.ORIGINAL)),
    ("auto", "not this one", ("triton", executors.ORIGINAL)),
    ("triton", None, ("triton", executors.ORIGINAL)),
    ("tiled", None, ("tiled",)),
]


@pytest.mark.parametrize("option, refused, chain", CHAINS)
def test_the_chain_of_a_gpu_ends_in_the_original_calls(option, refused, chain, monkeypatch):
    monkeypatch.setattr(plan_executors.GluonExecutor, "refusal", lambda *_: refused)
    plan = Plan((), (), ())
    assert executors.preference(option, plan, torch.device("cuda")) == chain
    assert executors.preference("auto", plan, torch.device("cpu")) == ("tiled",)


@pytest.mark.slow
@pytest.mark.parametrize("function", [attention, with_sums])
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_kernels_that_fail_give_way_to_the_original_calls(function, mode, as_on_a_gpu):
    run = compiled(function, executor="triton", dynamic=True)
    for lengths in ((40, 40), (40, 40), (23, 57)):
        arguments = inputs(*lengths)
        with mode():
            torch.testing.assert_close(run(*arguments), function(*arguments), rtol=1e-5, atol=1e-6)
    (region,) = records.reports()[-1].regions
    assert region.ran == executors.ORIGINAL and region.ran in str(records.reports()[-1])
    assert [note for note in region.notes if "triton failed" in note and "on purpose" in note]
    assert not [note for note in region.notes if "tiled" in note]


def test_strict_says_that_a_kernel_failed(as_on_a_gpu):
    with pytest.raises(Broken):
        compiled(executor="triton", strict=True)(*inputs())


def one_of(arguments):
    one = runner.Runner(compiled_region.make(program_of(attention, *arguments), Options(executor="triton")))
    return one, runner.call_of(one.found, arguments, ())


def test_a_capture_before_the_comparison_gets_the_original_calls(as_on_a_gpu, monkeypatch):
    monkeypatch.setattr(runner, "capturing", lambda device: True)
    arguments = inputs()
    one, call = one_of(arguments)
    (result,), known = one.validate("kind", broken, arguments, call)
    torch.testing.assert_close(result, attention(*arguments))
    assert not known


def test_without_memory_for_tiles_the_comparison_is_with_the_original_calls(monkeypatch):
    def short(*_):
        raise torch.OutOfMemoryError("on purpose")

    monkeypatch.setitem(executors.EXECUTORS, "tiled", short)
    arguments = inputs()
    one, call = one_of(arguments)
    assert one.validate("kind", lambda given: [attention(*given)], arguments, call)[1]
    with pytest.raises(runner.ExecutorError, match="differs"):
        one.validate("other", lambda given: [1.1 * attention(*given)], arguments, call)


def test_a_plan_that_stores_more_than_the_original_makes_is_refused(monkeypatch):
    for spare, refusals in ((traffic.MAX_STORED_BYTES, []), (0, [traffic.STORES_TOO_MUCH])):
        monkeypatch.setattr(traffic, "MAX_STORED_BYTES", spare)
        torch._dynamo.reset()
        arguments = inputs(5, 5 + len(refusals))  # another region, which no cache knows
        run = compiled(linear, dynamic=True)
        torch.testing.assert_close(run(*arguments), linear(*arguments), rtol=1e-4, atol=1e-4)
        found = records.reports()[-1]
        assert [r.reason for r in found.refusals] == refusals and len(found.regions) == 1 - len(refusals)


def test_sizes_at_which_a_plan_stores_more_run_the_original_calls(monkeypatch):
    monkeypatch.setattr(traffic, "MAX_STORED_BYTES", 0)
    run = compiled(linear, dynamic=True)
    for length, who in ((200, "tiled"), (5, executors.ORIGINAL), (190, "tiled")):
        arguments = inputs(length, length)
        torch.testing.assert_close(run(*arguments), linear(*arguments), rtol=1e-4, atol=1e-4)
        (region,) = records.reports()[-1].regions
        assert region.ran == who
    assert any(traffic.STORES_TOO_MUCH in note for note in region.notes)


def test_what_no_kernel_can_run_on_a_gpu_is_left_as_written(monkeypatch):
    """The compiler around may fuse it then; on a CPU the tiled executor needs no kernel."""

    def none(*_):
        raise NotPlannable("no form")

    program = program_of(linear, *inputs())
    plan = compiled_region.make(program, Options()).plan
    monkeypatch.setattr(plan_executors, "emit", none)
    entries = tuple(replace(i, meta=replace(i.meta, device="cuda")) for i in program.inputs)
    on_gpu = replace(program, inputs=entries)
    compiled_region.require_kernels(plan, program, Options(), {})
    compiled_region.require_kernels(plan, on_gpu, Options(executor="tiled"), {})
    with pytest.raises(NotPlannable, match="no form"):
        compiled_region.require_kernels(plan, on_gpu, Options(), {})

"""A model never breaks: whatever goes wrong inside of onepass, the original runs and the report says why."""

import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from onepass.api import backend
from onepass.api.backend import onepass_backend
from onepass.compiler import compiled_region
from onepass.lowering.plan.records import NotPlannable
from onepass.report import records
from onepass.runtime import compare_results, executors, runner

ROOT = Path(__file__).resolve().parents[2]


class Broken(Exception):
    pass


pytestmark = pytest.mark.usefixtures("fresh")


def attention(q, k, v):
    return torch.softmax(q @ k.mT / math.sqrt(q.shape[-1]), dim=-1) @ v


def inputs(size=40, dtype=torch.float32):
    return [torch.randn(1, 2, size, 16).to(dtype) for _ in range(3)]


def compiled(function=attention, **options):
    return torch.compile(function, backend=onepass_backend, options={"inner": "eager", **options})


def only(name):
    return [x for r in records.reports() for x in getattr(r, name)]


def assert_original(function=attention, arguments=None):
    arguments = arguments or inputs()
    torch.testing.assert_close(compiled(function)(*arguments), function(*arguments), equal_nan=True)


def broken(*a, **k):
    raise Broken("on purpose")


PLACES = [(compiled_region, name) for name in ("make_traced", "_search", "_restore", "canonical")]


@pytest.mark.parametrize("module, name", PLACES)
def test_a_failure_while_compiling_leaves_the_region(module, name, monkeypatch):
    monkeypatch.setattr(module, name, broken)
    assert_original()
    assert only("regions") == [] and "Broken: on purpose" in only("failures")[0]


@pytest.mark.parametrize("module, name", PLACES)
def test_strict_raises_while_compiling(module, name, monkeypatch):
    monkeypatch.setattr(module, name, broken)
    with pytest.raises(Exception, match="on purpose"):
        compiled(strict=True)(*inputs())


def test_a_failure_while_looking_for_regions_leaves_the_graph(monkeypatch):
    from onepass.graph_passes import replace

    monkeypatch.setattr(replace, "find_regions", broken)
    assert_original()
    assert "Broken: on purpose" in only("failures")[0]


def test_a_failure_while_replacing_leaves_the_region(monkeypatch):
    from onepass.graph_passes.insert_call import CallInserter

    monkeypatch.setattr(CallInserter, "insert", broken)
    assert_original()
    assert only("regions") == [] and only("failures")


def test_what_has_no_plan_is_refused(monkeypatch):
    def refuse(*a, **k):
        raise NotPlannable("not today")

    monkeypatch.setattr(compiled_region, "_search", refuse)
    assert_original()
    (refused,) = only("refusals")
    assert refused.reason == "not today" and refused.file == __file__


def test_a_failing_executor_is_used_once_and_the_original_runs(monkeypatch, caplog):
    calls = []

    def failing(*a):
        calls.append(1)
        raise Broken("on purpose")

    monkeypatch.setitem(executors.EXECUTORS, "tiled", failing)
    function, arguments = compiled(), inputs()
    for _ in range(3):
        torch.testing.assert_close(function(*arguments), attention(*arguments))
    assert len(calls) == 1
    (region,) = only("regions")
    assert any("tiled" in note and "on purpose" in note for note in region.notes)
    assert sum("on purpose" in record.message for record in caplog.records) == 1


def test_strict_raises_at_run_time(monkeypatch):
    monkeypatch.setitem(executors.EXECUTORS, "tiled", broken)
    with pytest.raises(Broken):
        compiled(strict=True)(*inputs())


def test_gradients_are_right_when_the_executor_fails(monkeypatch):
    monkeypatch.setitem(executors.EXECUTORS, "tiled", broken)
    arguments = [x.requires_grad_() for x in inputs()]
    mine = torch.autograd.grad(compiled()(*arguments).square().sum(), arguments)
    eagers = torch.autograd.grad(attention(*arguments).square().sum(), arguments)
    for a, b in zip(mine, eagers):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_a_failing_kernel_gives_way_to_the_tiled_executor(monkeypatch):
    monkeypatch.setitem(executors.EXECUTORS, "triton", broken)
    arguments = inputs()
    result = compiled(executor="triton")(*arguments)
    torch.testing.assert_close(result, attention(*arguments), rtol=1e-4, atol=1e-5)
    (region,) = only("regions")
    assert any("triton" in note for note in region.notes)


@pytest.mark.parametrize("wrong", [lambda x: x * math.nan, lambda x: x + 1, lambda x: x[..., :3], lambda x: x.double()])
def test_a_wrong_kernel_is_found_out(wrong):
    expected = torch.randn(4, 8)
    assert compare_results.mismatch(wrong(expected), expected) is not None
    assert compare_results.mismatch(expected + 1e-6, expected) is None


def test_a_kernel_is_validated_before_it_is_used(monkeypatch):
    arguments = inputs()
    made = compiled_region.make(program(arguments), backend.Options(executor="triton"))
    capturing = [False]
    monkeypatch.setattr(runner, "capturing", lambda device: capturing[0])
    one, call = runner.Runner(made), runner.call_of(made, arguments, ())
    with pytest.raises(runner.ExecutorError, match="differs"):
        one.validate("kind", lambda given: [torch.zeros(1, 2, 40, 16)], arguments, call)
    right = executors.EXECUTORS["tiled"](made, arguments, call)
    assert one.validate("kind", right, arguments, call)[1]
    assert runner.Runner(made).validated == {"kind"}, "remembered on disk"
    capturing[0] = True
    (result,), checked = one.validate("other", broken, arguments, call)
    torch.testing.assert_close(result, attention(*arguments), rtol=1e-4, atol=1e-5)
    assert not checked and one.validated == {"kind"}


def test_calls_of_one_kind_are_prepared_once(monkeypatch):
    prepared, right = [], executors.EXECUTORS["tiled"]
    monkeypatch.setitem(executors.EXECUTORS, "tiled", lambda *given: prepared.append(1) or right(*given))
    monkeypatch.setattr(runner, "MAX_KINDS_OF_CALLS", 2)
    function = compiled(libraries=False)
    with torch.no_grad():
        for count, arguments in ((1, inputs()), (1, inputs()), (2, [x.mT.contiguous().mT for x in inputs()])):
            torch.testing.assert_close(function(*arguments), attention(*arguments), rtol=1e-4, atol=1e-5)
            assert len(prepared) == count


def program(arguments):
    from onepass.graph.trace import program_of

    return program_of(attention, *arguments)


def test_autocast_inside_is_refused_and_right():
    def mixed(q, k, v):
        with torch.autocast("cpu", torch.bfloat16):
            return attention(q, k, v)

    assert_original(mixed)
    assert only("regions") == []


def test_complex_numbers_are_refused_and_right():
    def turned(q, k, v):
        scores = torch.view_as_complex((q @ k.mT).unflatten(-1, (-1, 2))).abs()
        return torch.softmax(scores, -1) @ v[..., : scores.shape[-1], :]

    assert_original(turned)


def test_empty_tensors_are_right():
    q, k, v = inputs()
    assert_original(arguments=[q[:, :, :0], k, v])
    assert_original(arguments=[q[:0], k[:0], v[:0]])


def test_a_mutated_input_is_right():
    def changing(q, k, v):
        scores = q @ k.mT
        scores.mul_(0.25)
        k.add_(1)
        return torch.softmax(scores, -1) @ v

    q, k, v = inputs()
    again = k.clone()
    torch.testing.assert_close(compiled(changing)(q, k, v), changing(q, again, v), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(k, again)


def test_scores_that_are_returned_too_are_right():
    def both(q, k, v):
        weights = torch.softmax(q @ k.mT / 4, -1)
        return weights @ v, weights

    arguments = inputs()
    for mine, eagers in zip(compiled(both)(*arguments), both(*arguments)):
        torch.testing.assert_close(mine, eagers, rtol=1e-4, atol=1e-5)


def test_dropout_of_nothing_is_right():
    def dropped(q, k, v):
        return torch.nn.functional.dropout(torch.softmax(q @ k.mT / 4, -1), 0.0) @ v

    arguments = inputs()
    torch.testing.assert_close(compiled(dropped)(*arguments), dropped(*arguments), rtol=1e-4, atol=1e-5)


def test_a_text_that_is_no_region_is_an_error_of_ours():
    from onepass.errors import ProgramError

    options = '{"rules": [], "strict": false, "executor": "auto"}'
    for text in ("", "{}", "[]", f'{{"program": "{{}}", "options": {options}, "strides": []}}'):
        with pytest.raises(ProgramError):
            compiled_region.carried(text)


CHECK = """
import sys
import onepass
assert "torch" not in sys.modules, "import onepass reads no torch"
import torch, torch._inductor.config, torch._dynamo.config
names = ("pre_grad_custom_pass", "joint_custom_pre_pass", "post_grad_custom_pre_pass")
def state():
    return (torch._inductor.config.get_config_copy(), torch._dynamo.config.get_config_copy(), torch.is_grad_enabled(),
            torch.get_default_dtype(), torch.get_num_threads(), torch.backends.cuda.matmul.allow_tf32)
before = state()
onepass.explain, onepass.GraphPass, onepass.onepass_backend
import onepass.operator
assert state() == before
"""


@pytest.mark.slow
def test_importing_changes_nothing_of_the_process():
    done = subprocess.run([sys.executable, "-c", CHECK], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr

"""A deterministic result is asked for by an option or of torch, at each call; no plan that adds by chance runs then.

An executor that lacks memory at one call runs the next ones.
"""

from dataclasses import replace

import pytest
import torch

import onepass
from onepass.lowering.executors import TILED
from onepass.runtime import executors, library_choice, operator, runner

pytestmark = pytest.mark.usefixtures("fresh")


@pytest.fixture
def torchs_mode():
    """Switches torch's mode, and off again behind the test."""
    yield torch.use_deterministic_algorithms
    torch.use_deterministic_algorithms(False)


@pytest.fixture
def prepared(monkeypatch):
    """Whether each call that was prepared is to be deterministic."""
    seen, prepare = [], executors.EXECUTORS["tiled"]

    def watching(found, tensors, call):
        seen.append(call.deterministic)
        return prepare(found, tensors, call)

    monkeypatch.setitem(executors.EXECUTORS, "tiled", watching)
    return seen


def attention(q, k, v):
    return torch.softmax(q @ k.mT, -1) @ v


def region(**options):
    """What calls a compiled region's operation, below what Dynamo guards, and the inputs of `attention`."""
    inputs = [torch.randn(2, 40, 16) for _ in range(3)]
    with operator.recorded() as calls:
        torch.compile(attention, backend="onepass", options={"inner": "eager", **options})(*inputs)
    ((text, (tensors, _)),) = calls.items()
    return (lambda: torch.ops.onepass.region(tensors, text, [])[0]), inputs


def test_torchs_mode_is_asked_at_each_call_and_each_is_prepared_once(prepared, torchs_mode):
    run, _ = region(executor="tiled")
    prepared.clear()
    for wanted in (True, False, True, False):
        torchs_mode(wanted)
        run()
    assert prepared == [True, False]


def test_an_option_holds_whatever_torchs_mode_is(prepared, torchs_mode):
    run, _ = region(executor="tiled", deterministic=True)
    torchs_mode(True)
    run()
    assert set(prepared) == {True}


def test_a_backward_is_asked_for_at_its_own_call(prepared, torchs_mode):
    inputs = [torch.randn(2, 300, 16, requires_grad=True) for _ in range(3)]
    result = torch.compile(attention, backend="onepass", options={"inner": "eager", "executor": "tiled"})(*inputs)
    torchs_mode(True)
    torch.autograd.grad(result, inputs, torch.ones_like(result))
    assert prepared == [False, True]


def test_options_are_part_of_the_key_of_what_is_compiled():
    passes = [onepass.GraphPass(), onepass.GraphPass(deterministic=True)]
    assert passes[0].uuid() != passes[1].uuid()
    inputs = [torch.randn(2, 40, 16) for _ in range(3)]
    keys = {
        onepass.explain(attention, *inputs, options={"deterministic": d}).regions[0].key for d in (False, True, True)
    }
    assert len(keys) == 2


def test_what_is_no_answer_is_refused():
    with pytest.raises(onepass.errors.OptionError, match="deterministic is True or False, not 1"):
        onepass.explain(attention, *[torch.randn(2, 40, 16)] * 3, options={"deterministic": 1})


def test_nothing_is_chosen_by_measurement(monkeypatch, torchs_mode):
    monkeypatch.setattr(library_choice, "fastest", lambda *_: pytest.fail("measured"))
    run, inputs = region(deterministic=True)
    results = [run() for _ in range(4)]
    assert all(torch.equal(results[0], other) for other in results[1:])
    exact = attention(*(x.double() for x in inputs))
    torch.testing.assert_close(results[0], exact, check_dtype=False, rtol=1e-4, atol=1e-5)


def test_settings_that_were_tuned_are_a_choice_by_timing_too(monkeypatch):
    with operator.recorded() as calls:
        torch.compile(attention, backend="onepass", options={"inner": "eager"})(*[torch.randn(2, 40, 16)] * 3)
    ((text, (tensors, numbers)),) = calls.items()
    known, device = runner.Runner(operator.compiled_region.read(text)), torch.device("cuda")
    known.tuned, known.orders[device] = {"any": {"row_tile": 64}}, ("triton",)
    monkeypatch.setattr(library_choice, "size_class", lambda *_: "any")
    call = known._call(tensors, numbers)
    assert [*known.order(device, call)] == ["tuned: row_tile 64", "triton"]
    assert [*known.order(device, replace(call, deterministic=True))] == ["triton"]


class Adding(type(TILED)):
    """An executor whose kernels add in an order that is not fixed, asked or not."""

    def prepare(self, *arguments):
        return replace(super().prepare(*arguments), executor="adding", deterministic=False)


def test_who_adds_by_chance_says_so_and_does_not_run_where_it_is_asked_for(monkeypatch, torchs_mode):
    monkeypatch.setitem(executors.EXECUTORS, "tiled", executors.of_plan(Adding()))
    run, inputs = region(executor="tiled")
    ran = lambda: onepass.reports()[-1].regions[0].ran
    assert ran() == "adding, adding in no fixed order"
    torchs_mode(True)
    torch.testing.assert_close(run(), attention(*inputs))
    assert ran() == executors.ORIGINAL
    assert any("order that is not fixed" in note for note in onepass.reports()[-1].regions[0].notes)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("asked, said", [(True, "; deterministic"), (False, ", unless a GPU joins two kernels")])
def test_the_report_says_it_of_both_plans(asked, said):
    inputs = [torch.randn(2, 300, 16, requires_grad=True) for _ in range(3)]
    found = torch.compile(attention, backend="onepass", options={"inner": "eager", "deterministic": asked})(*inputs)
    assert found.requires_grad
    (reported,) = onepass.reports()[-1].regions
    assert reported.deterministic and "repeats     the plan is deterministic" in str(reported)
    assert reported.backward.splitlines()[0].endswith(said)


@pytest.fixture
def short_of_memory(monkeypatch):
    """The tiled executor lacks memory so many times; then it runs. The list holds one number."""
    left, prepare = [0], executors.EXECUTORS["tiled"]

    def prepared(found, tensors, call):
        run = prepare(found, tensors, call)

        def tried(given):
            if left[0]:
                left[0] -= 1
                raise torch.OutOfMemoryError("out of memory")
            return run(given)

        return tried

    monkeypatch.setitem(executors.EXECUTORS, "tiled", prepared)
    return left


def ran(run, right):
    """Who ran a call, whose result is checked."""
    torch.testing.assert_close(run(), right)
    (report,) = onepass.reports()[-1].regions
    return report.ran


def test_who_lacks_memory_at_one_call_runs_the_next_ones(short_of_memory):
    run, inputs = region(executor="tiled")
    right = attention(*inputs)
    assert ran(run, right) == "tiled"
    for short in (1, 2, 2, runner.MAX_SHORT_OF_MEMORY):  # the first call that lacks it is tried twice
        short_of_memory[0] = short
        while short_of_memory[0]:
            who = ran(run, right)
        assert who == ("tiled" if short == 1 else executors.ORIGINAL)
        assert ran(run, right) == "tiled"
    (report,) = onepass.reports()[-1].regions
    assert any("lacked memory" in note for note in report.notes)


def test_who_always_lacks_memory_is_asked_no_more(short_of_memory):
    run, inputs = region(executor="tiled")
    short_of_memory[0] = 100
    for _ in range(20):
        assert ran(run, attention(*inputs)) == executors.ORIGINAL
    assert short_of_memory[0] == 100 - runner.MAX_SHORT_OF_MEMORY - 1
    short_of_memory[0] = 0
    assert ran(run, attention(*inputs)) == executors.ORIGINAL


def test_a_lack_of_memory_goes_to_a_strict_caller(short_of_memory):
    run, inputs = region(executor="tiled", strict=True)
    short_of_memory[0] = 1
    with pytest.raises(torch.OutOfMemoryError):
        run()
    assert ran(run, attention(*inputs)) == "tiled"


def running(run):
    """The runner behind a call, as before its first one."""
    run()
    (found,) = operator._RUNNERS.values()
    found.choices.clear(), found.ready.clear()
    return found


def test_a_wait_for_kernels_is_used_for_what_they_are_compared_with(monkeypatch):
    """While they are compiled, the results are computed and the rivals run once. Behind the call none stays."""
    run, inputs = region(executor="auto")
    found = running(run)
    seen, once = [], found._run_rivals_once
    watching = lambda *given: (once(*given), seen.append((found.ahead.expected, dict(found.ahead.rivals))))
    monkeypatch.setattr(found, "_run_rivals_once", watching)
    monkeypatch.setattr(runner.COMPILES, "is_under_way", lambda key: key == found.found.key)
    result = run()
    [(expected, rivals)] = seen
    torch.testing.assert_close(expected, [result])
    assert executors.ORIGINAL in rivals and set(rivals) == set(found.rivals(inputs, found._call(inputs, [])))
    assert found.ahead == runner.Ahead()


def test_what_fails_in_a_wait_fails_no_call(monkeypatch):
    run, inputs = region(executor="auto")
    found = running(run)
    monkeypatch.setattr(runner.COMPILES, "is_under_way", lambda key: True)
    monkeypatch.setattr(found, "_expected", lambda *_: 1 / 0)
    torch.testing.assert_close(run(), attention(*inputs))

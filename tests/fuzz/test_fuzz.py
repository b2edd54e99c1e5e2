"""A short run of the fuzzer, and that it can fail: a wrong executor, a crash and a failing executor are all seen.

So are wrong gradients.
"""

import json
import multiprocessing
import time
from collections import Counter
from dataclasses import replace
from random import Random

import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import given as drawn

from onepass import messages
from onepass.errors import Refusal
from onepass.runtime import executors
from onepass.training.programs import BackwardProgram
from tests.fuzz import gradients
from tests.fuzz.gradients import Answers, difference, movements
from tests.fuzz.layers import forms, layer, sections
from tests.fuzz.programs import SMALL, Fuzzed, programs
from tests.fuzz.run import LOUD, FuzzSettings, _awaited, compared, judge, printed, results_of, run, shrunk

PLAIN = Fuzzed(
    ("s = q @ k.mT", "s = s + bias", "s = s * 0.25", "p = s.softmax(-1)", "o = p @ v", "return o"),
    {"q": ("float", (2, 7, 8)), "k": ("float", (2, 9, 8)), "v": ("float", (2, 9, 8)), "bias": ("float", (7, 9))},
    "float32",
    "large",
    0,
)


pytestmark = pytest.mark.usefixtures("fresh")


def test_random_programs_are_right_or_left_alone():
    outcomes, examples = run(12, 0)
    assert sum(outcomes.values()) == 12
    assert not [kind for kind, _ in outcomes if kind in LOUD], "\n\n".join(map(str, examples.values()))
    assert outcomes["fused", "tiled"] > 3


@pytest.mark.slow
@settings(max_examples=10, suppress_health_check=list(HealthCheck))
@drawn(programs())
def test_drawn_programs_are_right_or_left_alone(program):
    assert judge(program).kind not in LOUD, str(program)


@pytest.mark.sampled(33)
@pytest.mark.parametrize("form", forms())
def test_every_spelling_of_a_form_is_python(form):
    random = Random(form)
    for _ in range(20):
        picked = layer(lambda *options: form if form in options else random.choice(options), random.randint, SMALL)
        assert picked.function() and len(picked.tensors()) == len(picked.inputs)


def test_every_section_is_used():
    used = {line[1:] for _, parts in sections().values() for part in parts for said in part for line in said}
    assert set(sections()) <= used | set(forms())


PROJECTED = Fuzzed(
    ("x = x @ w", "s = x @ x.mT", "o = s.softmax(-1) @ x", "return o"),
    {"x": ("float", (2, 40, 32)), "w": ("float", (32, 32))},
    "bfloat16",
    "large",
    0,
)


def test_views_of_results_keep_their_strides():
    """Where `nan_to_num` hides a row, eager's results are marked in a copy, which lost them."""
    lines = "s = q @ k.mT", "p = s.softmax(-1).nan_to_num()", "return p @ v, p[:, 0]"
    given = {name: ("float", (2, 3, 1, 4)) for name in "qkv"}
    assert judge(Fuzzed(lines, given, "float32", "a value is NaN", 879), "tiled").kind == "fused"


@pytest.mark.parametrize("times, kind", [(1 + 2**-8, "fused"), (-1, "wrong")])
def test_what_the_last_place_of_an_input_moves_is_not_wrong(monkeypatch, times, kind):
    """Of two large scores either may win once a projection is rounded; a result that is further off is wrong."""
    tiled = executors.EXECUTORS["tiled"]

    def off(found, tensors, call):
        run = tiled(found, tensors, call)
        return lambda given: run([t * times for t in given])

    monkeypatch.setitem(executors.EXECUTORS, "tiled", off)
    assert judge(PROJECTED, "tiled").kind == kind


DYNAMIC = Fuzzed(PLAIN.lines, PLAIN.inputs, "float32", "normal", 0, {}, True, {"q": (2, 9, 8), "bias": (9, 9)})


def test_a_second_call_is_compared_and_a_second_compilation_seen(monkeypatch):
    assert judge(DYNAMIC).kind == "fused"
    monkeypatch.setattr("tests.fuzz.run.onepass_backend", lambda graph, inputs, options=None: _only_for(graph, inputs))
    assert judge(DYNAMIC).kind == "recompiled"


def _only_for(graph, inputs):
    for x in inputs:
        int(x.shape[-2]) if isinstance(x, torch.Tensor) else int(x)  # a guard on every size
    return graph


def test_what_is_written_into_an_input_is_compared(monkeypatch):
    written = Fuzzed(("q.mul_(0.5)", *PLAIN.lines), PLAIN.inputs, "float32", "normal", 0)
    assert judge(written).kind == "fused"
    without = lambda graph, inputs, options=None: lambda *given: graph(*[x.clone() for x in given])
    monkeypatch.setattr("tests.fuzz.run.onepass_backend", without)
    assert judge(written).kind == "wrong"


def test_a_wrong_executor_is_found_and_its_program_shrunk(monkeypatch):
    right = executors.EXECUTORS["tiled"]

    def wrong(*given):
        run = right(*given)
        return lambda tensors: [r + 1e-3 for r in run(tensors)]

    monkeypatch.setitem(executors.EXECUTORS, "tiled", wrong)
    assert judge(PLAIN).kind == "wrong"
    small = shrunk(PLAIN, "wrong", FuzzSettings())
    assert small.regime == "normal" and "bias" not in small.source and len(small.lines) == 4


def test_a_failing_executor_is_loud(monkeypatch):
    def broken(*given):
        raise RuntimeError("no such kernel")

    monkeypatch.setitem(executors.EXECUTORS, "tiled", broken)
    assert judge(PLAIN).kind == "failed executor"


def test_an_exception_is_a_crash(monkeypatch):
    def broken(graph, inputs, options=None):
        raise RuntimeError("not today")

    monkeypatch.setattr("tests.fuzz.run.onepass_backend", broken)
    assert judge(PLAIN).kind == "crash"


def test_what_fails_inside_is_a_crash_if_strict(monkeypatch):
    def broken(*given):
        raise RuntimeError("no such kernel")

    monkeypatch.setitem(executors.EXECUTORS, "tiled", broken)
    assert judge(PLAIN, "tiled", strict=True).kind == "crash"


def test_a_refusal_that_raises_is_counted_as_one(monkeypatch):
    def refuses(graph, inputs, options=None):
        raise Refusal(messages.NO_PLAN, reason="not today")

    monkeypatch.setattr("tests.fuzz.run.onepass_backend", refuses)
    found = judge(PLAIN, strict=True)
    assert found.kind == "refused" and found.reason.startswith("raised: ") and "not today" in found.reason


def hangs_at_the_second(share, start, settings, now):
    """One program is counted, and the next one takes longer than anybody waits; the other process is done."""
    began = time.monotonic()
    now[start] = began, began, "the second program", Counter({("fused", "tiled"): 1}), {}
    time.sleep(100 * (start == 1))
    return Counter({("fused", "tiled"): share}), {}


@pytest.mark.slow
def test_what_was_counted_before_a_program_that_hangs_is_kept(monkeypatch, capsys):
    monkeypatch.setattr("tests.fuzz.run.MARGIN", 5.0)
    settings = FuzzSettings(strict=True, seconds=0.0)
    found = results_of(3, range(2), settings, hangs_at_the_second)
    assert printed(found, range(2), settings) == 1
    said = capsys.readouterr().out
    assert "crash: does not end\nthe second program" in said
    counted = json.loads(said.splitlines()[-1])
    assert counted["kinds"] == {"fused": 4, "crash": 1} and counted["programs"] == 5
    assert counted["outcomes"] == [["crash", "does not end", 1], ["fused", "tiled", 4]]
    assert counted["seeds"] == [0, 1] and counted["strict"] and not counted["large"]


class Awaited:
    """A process that is done after some seconds, on a clock that only waiting moves."""

    def __init__(self, monkeypatch, done: float, began: list[float]):
        self.clock, self.done, self.began = 0.0, done, began
        monkeypatch.setattr("tests.fuzz.run.time.monotonic", lambda: self.clock)

    def get(self, seconds: float):
        self.clock += seconds
        if self.clock < self.done:
            raise multiprocessing.TimeoutError
        return Counter({("fused", "tiled"): 3}), {}

    def last(self):
        programs = [(self.began[0], at, f"program {n}", Counter(), {}) for n, at in enumerate(self.began)]
        return next((p for p in reversed(programs) if p[1] <= self.clock), None)


@pytest.mark.parametrize(
    "done, began, said",
    [
        (700, [590], None),  # a slow start, and a program of 110 seconds
        (900, [590], "does not end"),
        (900, [590, 700, 800], None),  # each program has a time of its own
        (900, [700], "does not start"),
    ],
)
def test_a_slow_start_is_no_hang(monkeypatch, done, began, said):
    process = Awaited(monkeypatch, done, began)
    outcomes, _ = _awaited(process, 0.0, process.last, seconds=60.0)
    assert outcomes == Counter({("crash", said): 1} if said else {("fused", "tiled"): 3})


def test_what_eager_refuses_is_no_bug():
    bad = Fuzzed(("return q @ k",), PLAIN.inputs, "float32", "normal", 0)
    assert judge(bad).kind == "eager fails too"


def test_a_record_gives_the_same_tensors_again():
    assert all(torch.equal(a, b) for a, b in zip(PLAIN.tensors(), PLAIN.tensors(), strict=True))


@pytest.mark.parametrize("exact, wrong", [(65510.0, False), (6e4, True)])
def test_near_the_largest_half_rounding_may_make_a_value_infinite(exact, wrong):
    half = lambda value: (torch.tensor([value], dtype=torch.float16),)
    truth = (torch.tensor([exact], dtype=torch.float64),)
    found = compared(half(torch.inf), half(exact), truth, False, torch.float16)
    assert (found.kind == "wrong") == wrong


@pytest.mark.parametrize("own, wrong", [(1e-7, True), (2e-4, False)])
def test_halves_excuse_a_float32_result_only_where_eager_rounds(own, wrong):
    truth = torch.ones(3, dtype=torch.float64)
    mine, theirs = ((torch.ones(3) + error,) for error in (9e-4, own))
    assert (compared(mine, theirs, (truth,), False, torch.bfloat16).kind == "wrong") == wrong


# Gradients ------------------------------------------------------------------------------------------------------------

TRAINED = replace(PLAIN, wanted=("q", "k", "v", "bias"), regime="normal")
BY_LARGEST = ("s = q @ k.mT", "p = s.sigmoid()", "p = p / p.amax(-1, keepdim=True)", "o = p @ v", "return o")
NOT_DERIVED = replace(TRAINED, lines=BY_LARGEST, wanted=("q", "v"))


@pytest.mark.slow
def test_gradients_of_random_programs_are_right_or_left_alone():
    outcomes, examples = run(20, 2, FuzzSettings(with_gradients=True))
    assert sum(outcomes.values()) == 20
    assert not [kind for kind, _ in outcomes if kind in LOUD], "\n\n".join(map(str, examples.values()))
    assert outcomes["derived", "tiled"] > 5


@pytest.mark.sampled(1)
@pytest.mark.parametrize("inner", ["eager", "aot"])
def test_what_became_of_gradients_is_counted(inner):
    assert judge(replace(TRAINED, inner=inner)).kind == "derived"
    assert judge(replace(NOT_DERIVED, inner=inner)).kind == {"eager": "recomputed", "aot": "left to Inductor"}[inner]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("inner", ["eager", "aot"])
@pytest.mark.parametrize("wrong", [lambda g: g * 1.001, lambda g: g + 1e-3, torch.neg, torch.zeros_like])
def test_wrong_gradients_are_found(monkeypatch, inner, wrong):
    right = executors.EXECUTORS["tiled"]

    def off(found, tensors, call):
        run = right(found, tensors, call)
        is_backward = isinstance(found.program, BackwardProgram)
        return (lambda given: [*map(wrong, run(given))]) if is_backward else run

    monkeypatch.setitem(executors.EXECUTORS, "tiled", off)
    assert judge(replace(TRAINED, inner=inner)).kind == "wrong"


@pytest.mark.slow
def test_gradients_that_rounding_makes_are_no_mistakes():
    """One weight of each row is 1: the gradients of scores are differences of equal numbers.

    The movement is a bound, and a wide one; what it excuses is judged again in float64.
    """
    lines = ("s = q @ k.mT", "e = torch.exp(s - s.amax(-1, keepdim=True))", "p = e / e.sum(-1, keepdim=True)")
    sharp = replace(TRAINED, lines=(*lines, "return p @ v"), regime="near the end of half", wanted=("q",))
    (moved,) = movements(sharp, sharp.tensors())
    assert judge(sharp).kind == "derived" and 1e-5 < moved < 1e2
    (plain,) = movements(replace(sharp, regime="normal"), replace(sharp, regime="normal").tensors())
    assert plain < 1e-3


def test_what_rounding_excuses_is_judged_in_float64(monkeypatch):
    monkeypatch.setattr(gradients, "movements", lambda *given: [1e9] * 4)
    right, found = executors.EXECUTORS["tiled"], []

    def off(region, tensors, call):
        run = right(region, tensors, call)
        found.append(tensors[0].dtype)
        is_backward = isinstance(region.program, BackwardProgram)
        return (lambda given: [g * off_by(g) for g in run(given)]) if is_backward else run

    monkeypatch.setitem(executors.EXECUTORS, "tiled", off)
    off_by = lambda g: 1.01 if g.dtype == torch.float32 else 1.0
    assert judge(TRAINED).kind == "derived" and torch.float64 in found
    monkeypatch.setattr(gradients, "movements", lambda program, *_: [1e9 * (program.dtype == "float32")] * 4)
    off_by = lambda g: 1.01
    assert judge(TRAINED).kind == "wrong"


def test_every_run_gets_the_cotangents_of_eager():
    """o is -∞ or ∞ in eager and NaN where keys and values are multiplied first: each chose its own cotangents."""
    lines, shape = ("s = q @ k.mT", "return s @ v"), ("float", (3, 3, 16, 8))
    sums = Fuzzed(lines, dict.fromkeys("qkv", shape), "float32", "infinite value at the end", 219, wanted=("k",))
    assert judge(sums, strict=True).kind == "derived"


def test_scores_of_float16_are_computed_twice_in_float32():
    biased = "s = q @ k * 0.3 + 0.05 * (torch.arange(19) - torch.arange(22)[:, None])"
    weights = "p = torch.exp(s - torch.logsumexp(s, -1, keepdim=True))"
    same = "p, v = (x.to(torch.promote_types(p.dtype, v.dtype)) for x in (p, v))"
    lines = (biased, weights, same, "return p @ v, p")
    inputs = {"q": ("float", (3, 2, 22, 16)), "k": ("float", (3, 2, 16, 19)), "v": ("float", (3, 2, 19, 16))}
    assert judge(Fuzzed(lines, inputs, "float16", "near the end of half", 138), strict=True).kind == "fused"


NAN = torch.nan


@pytest.mark.parametrize(
    "got, hidden, wrong",
    [
        ((1.0, NAN), False, ""),
        ((1.1, NAN), False, "error"),
        ((NAN, NAN), False, "not finite where eager is finite"),
        ((1.0, 0.0), False, "finite where eager is not"),
        ((1.0, 0.0), True, ""),
    ],
)
def test_gradients_that_are_not_numbers(got, hidden, wrong):
    """The second number is NaN in eager, as those of a row without keys are."""
    answer = lambda *numbers: Answers((), (torch.tensor(numbers, dtype=torch.float64),))
    found = difference(answer(*got), answer(1.0, NAN), answer(1.0, NAN), 1e-6, hidden, lambda: [0.0])
    assert wrong in found and bool(wrong) == bool(found)


UNSHIFTED = ("s = torch.matmul(q, k.mT)", "e = s.exp_()", "p = e.div_(e.sum(-1, keepdim=True))", "return p @ v")


def test_what_a_report_assumes_is_no_mistake():
    """Of 10,000 programs one: exponentials that are summed with values leave the range of float32, and are divided."""
    shapes = {"q": (1, 2, 28, 4), "k": (1, 2, 35, 4), "v": (1, 2, 35, 8), "m": (28, 35)}
    inputs = {name: ("bool" if name == "m" else "float", shape) for name, shape in shapes.items()}
    program = Fuzzed(UNSHIFTED, inputs, "float32", "large", 479)
    assert judge(program).kind == "assumed"
    assert judge(replace(program, regime="normal")).kind == "fused"
    shifted = ("s = torch.matmul(q, k.mT)", "return s.softmax(-1) @ v")
    assert judge(replace(program, lines=shifted)).kind == "fused"

"""Runs random programs through the backend and counts what happened: `python -m tests.fuzz --count 1000 --seed 0`.

Every answer is compared with float64 eager. A wrong answer or a crash is shrunk, printed as a program that can be
pasted into tests/issues/, and makes the run fail; refusals are counted by reason. The last line is JSON, so that
several runs can be added up. Called by `make fuzz` and test_fuzz.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import multiprocessing
import os
import re
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, replace
from functools import partial
from itertools import zip_longest
from random import Random

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

import onepass.report.records as report
from onepass import process_state
from onepass.api.backend import onepass_backend
from onepass.compiler.rule_admission import DIVIDED
from onepass.errors import Refusal
from onepass.lowering.launch.triton_compat import TARGETS
from onepass.lowering.plan.records import NotPlannable
from tests.fuzz import gradients
from tests.fuzz.compile_ahead import failures
from tests.fuzz.forms import random_form
from tests.fuzz.gradients import answers, results_as_tuple, widened
from tests.fuzz.layers import random_layer
from tests.fuzz.programs import FILLS, LARGE, LONG, SMALL, Extents, Fuzzed, random_program, shorter
from tests.fuzz.rounding import Rounding

HALVES = (torch.float16, torch.bfloat16)
MOVES = 8  # of inputs, to see how far an exact result moves
FLOOR = {torch.float64: 1e-11, torch.float32: 5e-6, torch.float16: 4e-3, torch.bfloat16: 3e-2}
UNUSUAL = ("infinite value at the end", "a key is NaN", "a value is NaN", "near the end of half")
# Scores of a thousand round by 6e-5 in float32; one that is computed twice, in tiles of two shapes, differs by that.
TIMES = {"large": 40, "near the end of half": 200}  # of the floor
DRAWN = (random_program, random_form, random_layer, random_layer)
START = 600.0  # seconds for the start of all processes, which import torch at once and may share a GPU
MARGIN = 120.0  # seconds for a program's compilation, from its own beginning
MASKS = ("keep", "where(m", "masked_fill", "sdpa", "is_causal", "hidden", "nan_to_num", "isnan", "tril", "triu",
         *FILLS)  # fmt: skip
SINGLE = ("float32", ".float()", "0.9 **")  # what rounds to float32 in programs of any dtype
NOT_FINITE = gradients.NOT_FINITE
LOUD = ("crash", "wrong", "failed executor", "recompiled")


@dataclass(frozen=True)
class Outcome:
    """`kind`: fused, compiled, refused, nothing to do, eager fails too, torch.compile fails too; wrong, crash,
    failed executor (yet right), recompiled (more often than without onepass); assumed: not finite, by an assumption
    that the report names, and right in float64. `rounds`: right only by what rounding may do to the gradients."""

    kind: str
    reason: str = ""
    rounds: bool = False


@dataclass(frozen=True)
class FuzzSettings:
    """How programs are drawn and run. strict: what fails inside of onepass raises, and is a crash. seconds: no program
    starts later."""

    executor: str = "auto"
    device: str = "cpu"
    extents: Extents = SMALL
    with_gradients: bool = False
    strict: bool = False
    seconds: float = math.inf


def judge(program: Fuzzed, executor: str = "auto", device: str = "cpu", strict: bool = False) -> Outcome:
    """Runs one program both ways; a device that is a target's name (sm_90) only has its kernels compiled."""
    torch._dynamo.reset()
    process_state.forget("reports")
    if device in TARGETS:
        return compiled_ahead(program, device)
    try:
        program = gradients.with_written(program) if program.wanted else program
    except Exception as error:
        return Outcome("eager fails too", f"{type(error).__name__}: {_first_line(error)[:80]}")
    with gradients.around(program) as inner:
        options = {"inner": inner, "executor": executor, "libraries": False, "strict": strict}
        mine = _Counted(program.function(), onepass_backend, program.dynamic, {"options": options})
        outcome = _call(program, mine.run, device, False)
        if program.later and outcome.kind not in (*LOUD, "eager fails too"):
            outcome = _call(program, mine.run, device, True)
    again = mine.graphs > 1 and outcome.kind not in (*LOUD, "eager fails too")
    if outcome.reason == NOT_FINITE and program.dtype != "float64" and DIVIDED in _assumptions():
        exact = judge(replace(program, dtype="float64", later={}), executor, device, strict)
        return Outcome("assumed", DIVIDED) if exact.kind == "fused" else outcome
    if outcome.kind == "wrong" and program.inner != "eager":
        return _wrong_alone(program, device, outcome)
    if outcome.rounds and program.dtype != "float64":
        exact = judge(replace(program, dtype="float64", later={}), executor, device, strict)
        return Outcome("wrong", f"in float64: {exact.reason}") if exact.kind == "wrong" else outcome
    return _alone(program, mine, device, outcome) if again or outcome.kind == "crash" else outcome


def _call(program: Fuzzed, run, device: str, later: bool) -> Outcome:
    """Compares one call, at the program's sizes or its later ones."""
    inputs = lambda: program.tensors(device, later)
    try:
        eager = answers(program.function(), program, inputs())
        with sdpa_kernel(SDPBackend.MATH):  # a fused one of torch loses the NaN of a last key on some CPUs
            exact = answers(program.function(stable=True), program, [*map(widened, inputs())], eager)
    except Exception as error:
        return Outcome("eager fails too", f"{type(error).__name__}: {_first_line(error)[:80]}")
    try:
        got = answers(run, program, inputs(), eager)
        if device == "cuda":
            torch.cuda.synchronize()  # or a fault would be met by the next program
    except Exception as error:
        if isinstance(cause := getattr(error, "inner_exception", error), (Refusal, NotPlannable)):
            return Outcome("refused", f"raised: {_first_line(cause)[:200]}")
        return Outcome("crash", f"{type(error).__name__}: {_first_line(error)[:200]}")
    if len(got.results) != len(eager.results):
        return Outcome("wrong", "what is written into the inputs")
    if len(exact.results) != len(eager.results):
        return Outcome("eager fails too", "float64 writes into other inputs")
    said = program.source
    masked = any(word in said for word in MASKS)
    scores = "v" not in program.inputs  # what is not finite is in the scores, too, and may hide itself
    # What a mask hides may be NaN in eager and finite here: laws assume that it is finite. A norm of zeros in float16
    # is 0 / 0, because its least divisor, 1e-12, is 0 there.
    hidden = (program.regime in UNUSUAL or "normalize" in said) and (masked or scores)
    if hidden and "nan_to_num" in said:
        eager, exact = _marked(program, inputs(), eager, exact)
    rounded = "float32" if any(word in said for word in SINGLE) else program.dtype
    times = TIMES.get(program.regime, 1) if rounded in ("float32", "float64") else 1
    judged = partial(compared, got.results, eager.results, exact.results, hidden, getattr(torch, rounded), times)
    outcome = judged()
    if outcome.kind == "wrong":
        outcome = judged(spread(program, inputs(), exact.results))
    if not program.wanted or outcome.kind in LOUD:
        return outcome
    asked = []
    moved = lambda: asked.append(program) or gradients.movements(program, inputs(), eager)
    floor = gradients.FLOORS[getattr(torch, rounded)]
    wrong = gradients.difference(got, eager, exact, floor, masked, moved)
    if "clamp" in said and program.regime.endswith("NaN") and wrong.endswith(gradients.NOT_FINITE):
        wrong = ""  # torch has the derivative 0 of a NaN that is clamped, and others have NaN
    became = gradients.what_became(report.reports(), outcome.kind)
    return Outcome("wrong", wrong) if wrong else Outcome(became, outcome.reason, bool(asked))


def spread(program: Fuzzed, tensors: list, exact: tuple) -> list[torch.Tensor]:
    """How far each exact result moves when inputs do by their last place, as when a projection before is rounded:
    which of two scores of some ten thousands is the larger, nobody knows then, and eager is right by luck.

    In the others every operation rounds instead, and in float16 as well, in float32, as kernels compute: a weight of 1
    does not move with the inputs, but it does in a kernel that computes its score twice, as float32 holds a score of
    40,000 to 1/256. A kernel of float16 also keeps some of the program's roundings, where scores may be a mask's: so
    eager's own results of moved inputs count. (Scores of bfloat16 have no such bound: their weights would be allowed
    anything.)
    """
    random, dtype = torch.Generator(tensors[0].device).manual_seed(0), getattr(torch, program.dtype)
    last = torch.finfo(dtype).eps
    noise = lambda t: 1 + last * (2 * torch.rand(t.shape, generator=random, device=t.device, dtype=torch.float64) - 1)
    near = lambda t: t.double() * noise(t) if t.is_floating_point() else t.clone()
    run = lambda given: results_as_tuple(program.function(stable=True)(*given))
    moved = [run([*map(near, tensors)]) for _ in range(MOVES) if dtype in HALVES]
    narrow = lambda t: near(t).to(t.dtype)
    moved += [run([*map(narrow, tensors)]) for _ in range(MOVES) if dtype == torch.float16]
    for move in range(MOVES if dtype != torch.bfloat16 else 0):
        with Rounding(min(last, torch.finfo(torch.float32).eps), move):
            moved.append(run([*map(widened, tensors)]))
    apart = lambda found, truth: torch.stack([(m - truth).abs().nan_to_num(0, 0) for m in found]).amax(0)
    return [apart(found, truth) for *found, truth in zip(*moved, exact)]


def _marked(program: Fuzzed, tensors: list[torch.Tensor], *given: gradients.Answers) -> list[gradients.Answers]:
    """The answers with NaN where they have one without `nan_to_num`, which makes a row 0 that a hidden NaN spoils."""
    lines = tuple(re.sub(r"\.nan_to_num\([^)]*\)", "", line) for line in program.lines)
    plain = results_as_tuple(replace(program, lines=lines).function(stable=True)(*map(widened, tensors)))
    # The copy has the strides of the result, which are compared, too.
    copy = lambda r: torch.empty_strided(r.shape, r.stride(), dtype=r.dtype, device=r.device).copy_(r)
    mark = lambda r, p: r if p is None or not r.is_floating_point() else copy(r).masked_fill_(p.isnan(), math.nan)
    pairs = [zip_longest(answer.results, plain) for answer in given]
    return [gradients.Answers(tuple(mark(*p) for p in each), a.gradients) for each, a in zip(pairs, given, strict=True)]


class _Counted:
    """A compiled function that counts how often its backend was asked."""

    def __init__(self, function, backend, dynamic: bool, how: dict):
        self.graphs = 0

        def counting(graph, inputs, **given):
            self.graphs += 1
            return backend(graph, inputs, **given)

        self.run = torch.compile(function, backend=counting, dynamic=dynamic or None, **how)


def _alone(program: Fuzzed, mine: _Counted, device: str, outcome: Outcome) -> Outcome:
    """What torch.compile does without onepass: where that fails too it is no crash, and it may compile less often."""
    torch._dynamo.reset()
    plain = _Counted(program.function(), gradients.PLAIN[program.inner], program.dynamic, {})
    try:
        for later in (False, True) if program.later else (False,):
            answers(plain.run, program, program.tensors(device, later))
    except Exception as error:
        return Outcome("torch.compile fails too", _first_line(error)[:80])
    more = mine.graphs > plain.graphs and outcome.kind != "crash"
    return Outcome("recompiled", f"{mine.graphs} times, {plain.graphs} alone") if more else outcome


def _assumptions() -> set[str]:
    """What the reports of the last program say that its forms assume."""
    return {assumed for one in report.reports() for assumed in one.assumptions}


def _wrong_alone(program: Fuzzed, device: str, outcome: Outcome) -> Outcome:
    """What AOTAutograd makes of the program without onepass: where that is wrong too it is no mistake of onepass."""
    torch._dynamo.reset()
    plain = _Counted(program.function(), gradients.PLAIN[program.inner], program.dynamic, {})
    calls = (False, True) if program.later else (False,)
    wrong = any(_call(program, plain.run, device, later).kind == "wrong" for later in calls)
    return Outcome("torch.compile is wrong too", outcome.reason) if wrong else outcome


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [""])[0]


def compiled_ahead(program: Fuzzed, target: str) -> Outcome:
    """Compiles the kernels and runs nothing but the tiled executor."""
    try:
        program.function()(*program.tensors())
    except Exception as error:
        return Outcome("eager fails too", f"{type(error).__name__}: {_first_line(error)[:80]}")
    try:
        wrong = failures(program, target)
    except Exception as error:
        return Outcome("crash", f"{type(error).__name__}: {_first_line(error)[:200]}")
    return Outcome("failed executor", wrong[0]) if wrong else Outcome("compiled")


def compared(got, eager, exact, hidden: bool, rounded: torch.dtype, times: float = 1, spread=()) -> Outcome:
    """Wrong if any result is further from float64 than eager's own error and a floor allow, or finite elsewhere.

    rounded: the narrowest type that the program rounds to; in a float32 result only where eager's own error shows it.
    hidden: what eager makes NaN of a masked value that is not finite may be finite. times: of the usual floor.
    spread: how far each element may be off besides.
    """
    for mine, theirs, truth, room in zip_longest(got, eager, exact, spread):
        if not theirs.is_floating_point():  # where the largest is, say: rounding decides
            if (mine.dtype, mine.shape) != (theirs.dtype, theirs.shape):
                return Outcome("wrong", f"{mine.dtype}{list(mine.shape)}, eager {theirs.dtype}{list(theirs.shape)}")
            continue
        floor = times * max(FLOOR[rounded], FLOOR[mine.dtype])
        if (rounded, mine.dtype) == (torch.float32, torch.float64):
            floor *= 20  # a rounding that the program asks for is dropped: of scores of a thousand, 6e-5
        least = times * FLOOR[mine.dtype] if mine.dtype == torch.float32 else floor
        if difference := _difference(mine, theirs, truth.double(), hidden, floor, least, room):
            return Outcome("wrong", difference)
    found = report.reports()
    notes = [n for r in found for region in r.regions for n in region.notes if "failed" in n]
    notes += [f for r in found for f in r.failures]
    if notes:
        return Outcome("failed executor", re.sub(r"\s*\(region .*", "", notes[0])[:200])
    if any(r.regions for r in found):
        return Outcome("fused", ", ".join(sorted({region.ran for r in found for region in r.regions})))
    reasons = [f.reason for r in found for f in r.refusals]
    return Outcome("refused", re.sub(r" at <fuzzed>:\d+", "", reasons[0])) if reasons else Outcome("nothing to do")


def _difference(got, eager, exact, hidden: bool, floor: float, least: float, room=None) -> str:
    if got.dtype != eager.dtype or got.shape != eager.shape or _strides(got) != _strides(eager):
        return f"{got.dtype}{list(got.shape)} {got.stride()}, eager {eager.dtype}{list(eager.shape)} {eager.stride()}"
    most = 0.99 * torch.finfo(got.dtype).max  # beyond it, rounding decides whether a value is infinite
    usable = exact.isfinite() & eager.isfinite() & (exact.abs() <= most)
    if not got[usable].isfinite().all():
        return NOT_FINITE
    if not hidden and bool((got.isfinite() & exact.isnan() & eager.isnan()).any()):
        return "finite where eager is NaN"
    if not usable.any():
        return ""
    error, own = ((x.double() - exact)[usable].abs() for x in (got, eager))
    error = error if room is None else (error - 2 * room[usable]).clamp(min=0)
    error, own = error.max().item(), own.max().item()
    size = max(1.0, exact[usable].abs().max().item())
    floor = floor if own > least * size else least
    return "" if error <= 4 * own + floor * size else f"error {error:.3g}, eager's {own:.3g}, size {size:.3g}"


def _strides(tensor) -> list[int]:
    """Of axes that have more than one element: the others' say nothing."""
    return [stride for length, stride in zip(tensor.shape, tensor.stride(), strict=True) if length > 1]


def drawn(random: Random, extents: Extents, with_gradients: bool) -> Fuzzed:
    """A program; one with gradients is sometimes long, and more often of a form that is learned."""
    if not with_gradients:
        return random.choice(DRAWN)(random, extents)
    extents = LONG if extents is SMALL and random.random() < 0.3 else extents
    return gradients.asked(random, random.choice((*DRAWN, gradients.random_learned))(random, extents))


Found = tuple[Counter, dict[tuple[str, str], "Fuzzed | str"]]  # what became of programs, and examples of the loud


def run(count: int, start: int, settings: FuzzSettings = FuzzSettings(), now=None) -> Found:
    """Counts outcomes of `count` programs, or of as many as there is time for, with an example of each loud one.

    now: a shared dictionary that holds, by the seed, when the first program and the one that runs began, that program,
    and what was found before it: whoever waits for a run that hangs can say at what, and loses nothing.
    """
    first = time.monotonic()
    outcomes: Counter = Counter()
    examples: dict[tuple[str, str], Fuzzed | str] = {}
    random = Random(start)
    for _ in range(count):
        program = drawn(random, settings.extents, settings.with_gradients)
        if time.monotonic() > first + settings.seconds:
            break
        if now is not None:
            now[start] = first, time.monotonic(), str(program), outcomes, examples
        try:
            outcome = judge(program, settings.executor, settings.device, settings.strict)
        except torch.AcceleratorError as error:
            outcome = Outcome("crash", str(error).strip().splitlines()[0])
        outcomes[outcome.kind, "" if outcome.kind == "wrong" else outcome.reason] += 1
        if "CUDA error" in outcome.reason:  # nothing runs in this process any more
            return outcomes, {**examples, (outcome.kind, outcome.reason): program}
        room = outcome.kind != "failed executor" or len(examples) < 12
        if outcome.kind in LOUD and room and (outcome.kind, outcome.reason) not in examples:
            examples[outcome.kind, outcome.reason] = program
            if settings.device == "cpu":
                examples[outcome.kind, outcome.reason] = shrunk(program, outcome.kind, settings)
    return outcomes, examples


def shrunk(program: Fuzzed, kind: str, settings: FuzzSettings) -> Fuzzed:
    """The simplest program with the same kind of outcome that single steps lead to."""
    for simpler in shorter(program):
        if judge(simpler, settings.executor, settings.device, settings.strict).kind == kind:
            return shrunk(simpler, kind, settings)
    return program


def _work(count: int, start: int, settings: FuzzSettings, now=None) -> Found:
    os.environ["ONEPASS_CACHE"] = tempfile.mkdtemp()
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    if settings.device == "cuda":
        torch.cuda.set_device(start % torch.cuda.device_count())
        torch.zeros(1, device="cuda")  # the start of a GPU is no program's time
    return run(count, start, settings, now)


def results_of(share: int, starts: range, settings: FuzzSettings, work=_work) -> list[Found]:
    """What each process counted; one that does not end adds a crash, with the program that it was at.

    Clocks start with a process's first program: a slow start is no hang.
    """
    if len(starts) == 1:
        return [work(share, starts[0], settings)]
    context, found = multiprocessing.get_context("spawn"), []
    with context.Manager() as manager, context.Pool(len(starts)) as pool:
        now = manager.dict()
        waiting = [(start, pool.apply_async(work, (share, start, settings, now))) for start in starts]
        started = time.monotonic()
        found = [_awaited(result, started, partial(now.get, start), settings.seconds) for start, result in waiting]
        pool.terminate()
    return found


def _awaited(result, started: float, last, seconds: float) -> Found:
    """What a process counted. `last()` is what it said when its last program began, None before its first one."""
    while True:
        said = last()
        end = max(said[0] + seconds, said[1] + MARGIN) if said else started + START
        try:
            return result.get(min(1.0, max(0.1, end - time.monotonic())))
        except multiprocessing.TimeoutError:
            if time.monotonic() < end or last() != said:
                continue
        _, _, program, outcomes, examples = said or (0.0, 0.0, "", Counter(), {})
        hangs = ("crash", "does not end" if said else "does not start")
        return outcomes + Counter({hangs: 1}), {**examples, hangs: program}


def printed(results: list[Found], starts: range, settings: FuzzSettings) -> int:
    """Prints what was counted, examples, and one line of JSON; 1 if anything is loud."""
    outcomes = sum((counts for counts, _ in results), Counter())
    kinds: Counter = Counter()
    for (kind, _), number in outcomes.items():
        kinds[kind] += number
    print(f"{sum(kinds.values())} programs, seeds {starts[0]}..{starts[-1]}:", dict(kinds))
    for (kind, reason), number in outcomes.most_common():
        if kind not in ("compiled", "nothing to do"):
            print(f"  {number:6d}  {kind}: {reason}")
    for _, examples in results:
        # What is not loud is there where a device is lost: nobody knows by whom.
        order = lambda item: LOUD.index(item[0][0]) if item[0][0] in LOUD else len(LOUD)
        for (kind, reason), program in sorted(examples.items(), key=order)[:6]:
            print(f"\n{kind}: {reason}\n{program}")
    asked = {name: getattr(settings, name) for name in ("executor", "device", "with_gradients", "strict")}
    counted = [[kind, reason, number] for (kind, reason), number in sorted(outcomes.items())]
    said = {"programs": sum(kinds.values()), "seeds": [starts[0], starts[-1]], **asked}
    print(json.dumps({**said, "large": settings.extents is LARGE, "kinds": kinds, "outcomes": counted}), flush=True)
    return int(any(kinds[kind] for kind in LOUD))


def main(arguments=None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--executor", default="auto")
    parser.add_argument("--device", default="cpu", help="cpu, cuda, or a target that kernels are compiled for: sm_90")
    parser.add_argument("--large", action="store_true", help="long sequences in half precision")
    parser.add_argument("--gradients", action="store_true", help="gradients of random inputs, too")
    parser.add_argument("--strict", action="store_true", help="what fails inside of onepass is a crash")
    parser.add_argument("--seconds", type=float, default=1e6, help="stop then, and name what does not end")
    given_ = parser.parse_args(arguments)
    extents = LARGE if given_.large else SMALL
    settings = FuzzSettings(given_.executor, given_.device, extents, given_.gradients, given_.strict, given_.seconds)
    starts = range(given_.seed, given_.seed + given_.jobs)
    return printed(results_of(-(-given_.count // given_.jobs), starts, settings), starts, settings)

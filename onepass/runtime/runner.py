"""How one region runs in this process: who runs it, checked once, and then ready for every call of the same kind.

A kind of call is its tensors' shapes, strides, dtypes and alignment, the sizes that no tensor states, and whether torch
is to be deterministic. The first call of a kind prepares everything that depends on no pointer; the next ones look it
up.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any

import torch

from ..compiler import library_kernels
from ..compiler.compiled_region import Fused, make
from ..compiler.traffic import STORES_TOO_MUCH, stores_too_much
from ..errors import OnepassError
from ..graph.program import Program
from ..lowering.executors import GLUON, TILED
from ..lowering.masks.block_map import capturing
from ..lowering.plan.records import IndexOutOfRange, NotPlannable
from ..lowering.stage_times import shown, stage
from ..report import records
from . import executors, library_choice
from .background import COMPILES, START
from .compare_results import (
    Pair,
    RoundingFacts,
    compared_by_elements,
    computed_dtypes,
    mismatch,
    moved,
    undecided,
)
from .measurements import Measured, keep
from .region_call import RegionCall, Tensors, call_of, falls_back, is_sealed, prepares, unfit

MAX_UNDECIDED_COMPARISONS = 8  # after which a kernel counts as wrong
MAX_SHORT_OF_MEMORY = 8  # attempts in a row, after which an executor that lacks memory counts as failed
MAX_KINDS_OF_CALLS = 1024  # that are kept ready; generating more tokens than that prepares calls again
NOT_INVARIANT = "no executor gives an invariant result, and the original calls have other bits"
Mismatch = tuple[torch.Tensor, torch.Tensor, str]  # a result, what was expected, and by how much they differ
log = logging.getLogger(__name__)


def _kind(tensors: Tensors, numbers: Sequence[int]) -> tuple:
    """The kind of a call."""
    key = [tensors[0].device, torch.are_deterministic_algorithms_enabled(), *numbers]
    for x in tensors:
        key += (x.shape, x.stride(), x.dtype, x.data_ptr() & 15)
    return tuple(key)


class ExecutorError(OnepassError):
    """An executor that cannot be used: not there, or its result is not the tiled executor's."""


@dataclass
class Ahead:
    """What a first call needs beside its kernels, ready before these are: right results, and rivals that have run."""

    expected: list[torch.Tensor] | None = None
    rivals: dict[str, executors.Run] = field(default_factory=dict)


class LastCall:
    """The kind of the latest calls, with the check that torch makes of the tensors of a compiled graph: class, dtype,
    device, sizes, strides, and the dispatcher's keys. Building the kind anew takes the host ten times as long.

    Example: each step of a training run has calls of the same kinds.
    """

    def __init__(self, kind: tuple, known: tuple[str, executors.Run], tensors: Tensors, numbers: Sequence[int]):
        self.kind, self.known, self.numbers = kind, known, list(numbers)
        self.who = getattr(known[1], "who", known[0])
        self.deterministic = torch.are_deterministic_algorithms_enabled()
        self.alignments = [x.data_ptr() & 15 for x in tensors]
        sizes, strides = [list(x.shape) for x in tensors], [list(x.stride()) for x in tensors]
        guards = torch._C._dynamo.guards.TensorGuards
        self.check = guards(*tensors, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides).check

    @classmethod
    def of(cls, *given: Any) -> LastCall | None:
        """None where this torch has no such check, or a size is no number yet."""
        try:
            return cls(*given)
        except Exception:  # the check is torch's own and private; without it, each call looks up its kind
            return None

    def is_like(self, tensors: Tensors, numbers: Sequence[int]) -> bool:
        """Whether a call is of this kind."""
        if torch.are_deterministic_algorithms_enabled() != self.deterministic or not self.check(*tensors):
            return False
        return [x.data_ptr() & 15 for x in tensors] == self.alignments and self.numbers == [*numbers]


class Runner:
    """One region: which executors are left, what was validated, and the kinds of calls that are ready."""

    def __init__(self, found: Fused):
        self.found = found
        self.region = found.key  # as reports of graphs name it
        self.broken: set[str] = set()
        self.ran = ""
        self.declined: list[str] = []  # why executors have no kernel
        self.orders: dict[torch.device, tuple[str, ...]] = {}
        self.ready: dict[tuple, tuple[str, executors.Run]] = {}
        self.latest: tuple = ()  # the kind of the latest call that was ready
        self.last: LastCall | None = None  # of a kind that came twice in a row
        kept = Measured.read(found.key)
        self.validated, self.choices, self.tuned = kept.validated, kept.choices, kept.tuned
        self.seen: set[str] = set()
        self.undecided: Counter[str] = Counter()
        self.short_of_memory: Counter[str] = Counter()
        self.took = 0.0  # seconds of the plan's last run that was prepared; on a GPU, of the host
        self.ahead = Ahead()
        records.attach(found.report)

    def __call__(self, tensors: Tensors, numbers: Sequence[int]) -> list[torch.Tensor]:
        last = self.last
        if last is not None and last.is_like(tensors, numbers):
            return self._run_ready(last.kind, last.known, tensors, numbers)
        kind = _kind(tensors, numbers)
        known = self.ready.get(kind)
        if known is None:
            return self._prepared(kind, tensors, numbers)
        self.last = LastCall.of(kind, known, tensors, numbers) if kind == self.latest else None
        self.latest = kind
        return self._run_ready(kind, known, tensors, numbers)

    def repeated(self, tensors: Tensors, numbers: Sequence[int]) -> list[torch.Tensor] | None:
        """The results of a call like the last one, by its kernels; None if it is none, or fails: `__call__` runs it."""
        last = self.last
        if last is None or last.who != self.ran or not last.is_like(tensors, numbers):
            return None
        try:
            return last.known[1](tensors)
        except Exception:  # `__call__` runs it again, and decides what the error means
            return None

    def _forget_ready(self) -> None:
        """Prepares every call again."""
        self.ready.clear()
        self.last, self.latest = None, ()

    def _run_ready(
        self, kind: tuple, known: tuple[str, executors.Run], tensors: Tensors, numbers: Sequence[int]
    ) -> list[torch.Tensor]:
        name, run = known
        who = getattr(run, "who", name)
        if who != self.ran:
            self.say(who)
        try:
            return run(tensors)
        except Exception as error:
            is_hidden = isinstance(error, executors.EntryNotRead)
            is_own = name == executors.ORIGINAL and not is_hidden and not isinstance(error, torch.OutOfMemoryError)
            is_own |= isinstance(error, IndexOutOfRange)
            if is_own or is_sealed():  # the program itself raises it, or nobody else is prepared
                raise
            if is_hidden:
                self._declines(name, error)
            else:
                self._fails(name, error)
            return self._prepared(kind, tensors, numbers)

    def _prepared(self, kind: tuple, tensors: Tensors, numbers: Sequence[int]) -> list[torch.Tensor]:
        """The first call of a kind: prepared, and for a kernel compared with the tiled executor."""
        prepares(f"the region at {', '.join(self.found.report.places)}")
        seconds = records.seconds_of(self.found.report.key)
        with stage("first run", seconds):
            results = self._first(kind, tensors, numbers)
        log.debug("onepass: seconds of the first runs of region %s: %s", self.region[:12], shown(seconds))
        return results

    def _first(self, kind: tuple, tensors: Tensors, numbers: Sequence[int]) -> list[torch.Tensor]:
        call, short = self._call(tensors, numbers), Counter(self.short_of_memory)
        self._use_the_wait(tensors, call)
        with stage("wait for kernels compiled ahead"):
            COMPILES.finish(START)
            COMPILES.finish(self.found.key)
        try:
            results = self._chosen(kind, tensors, call) if not unfit(self.found, call) else None
            results = self._without_a_long_wait(kind, tensors, call) if results is None else results
            results = self._planned(kind, tensors, call) if results is None else results
        except IndexOutOfRange:
            raise
        except Exception as error:  # of asking who should run, or of measuring it
            if self.found.options.strict:
                raise
            tell(self.found.report.key, f"choosing an executor failed, so the original calls run: {one_line(error)}")
            results = None
        try:
            return self._by_original_calls(kind, tensors, call) if results is None else results
        finally:
            self.ahead = Ahead()
            if self.short_of_memory - short:  # who ran instead is not kept: the next call may have more memory
                self.ready.pop(kind, None)
                self.last = None

    def _use_the_wait(self, tensors: Tensors, call: RegionCall) -> None:
        """While a thread compiles the kernels: computes what they are compared with, and has the rivals run once, which
        compiles them. What fails here is done again later, where its error counts."""
        key, size = self.found.key, library_choice.size_class(tensors[0].device, call.sizes)
        is_needed = not self.validated and size not in self.choices and not unfit(self.found, call)
        if not is_needed or capturing(tensors[0].device) or not COMPILES.is_under_way(key):
            return
        try:
            with stage("validation"):
                self.ahead.expected = self._expected(tensors, call)
            with stage("rivals"):
                self._run_rivals_once(tensors, call)
        except Exception as error:
            if library_choice.is_lost(error):
                raise

    def _run_rivals_once(self, tensors: Tensors, call: RegionCall) -> None:
        """Has the rivals run that will be timed beside the plan, as long as its kernels are not there."""
        others = self._rivals_of_first_call(tensors, call)
        least = library_choice.least_seconds(self.found, others, tensors, call)
        for name, run in self._ready_rivals(others, tensors, call).items():
            taken = GLUON.seconds(self.found.plan, call.sizes) if name in least else inf
            if not COMPILES.is_under_way(self.found.key) or library_choice.takes_too_long(least.get(name), taken):
                continue
            run(tensors)
            self.ahead.rivals[name] = run

    def _rivals_of_first_call(self, tensors: Tensors, call: RegionCall) -> dict[str, executors.Prepare]:
        return self.rivals(tensors, call)

    def compile_ahead(self, tensors: Tensors, numbers: Sequence[int], device: torch.device) -> None:
        """Compiles the kernels that a call on this device would first try, for tensors like these, on "meta".

        Only where a plan's kernels run. Nothing is decided: the call itself prepares and checks what it runs.
        """
        call = self._call(tensors, numbers)
        rival, _ = self.choices.get(library_choice.size_class(device, call.sizes), ("", 1.0))
        first = next(iter(self.order(device, call)))
        if not rival and first in executors.KERNELS and first not in self.broken:
            COMPILES.finish(START)
            executors.compile_ahead(first, self.found, tensors, call, device)

    def _call(self, tensors: Tensors, numbers: Sequence[int]) -> RegionCall:
        return call_of(self.found, tensors, numbers)

    def _by_original_calls(self, kind: tuple, tensors: Tensors, call: RegionCall) -> list[torch.Tensor]:
        """The last resort, from now on for calls of this kind. Raises ExecutorError where it may have other bits."""
        if self.found.options.invariant and not unfit(self.found, call):
            raise ExecutorError(f"{NOT_INVARIANT}: {'; '.join(self.declined) or 'none has run'}")
        run = executors.original(self.found, tensors, call)
        results = run(tensors)
        self._keep(kind, executors.ORIGINAL, run)
        self.say(executors.ORIGINAL)
        return results

    def _planned(self, kind: tuple, tensors: Tensors, call: RegionCall) -> list[torch.Tensor] | None:
        """The results by the first executor that works; None if none does."""
        for name, (who, prepare) in self.order(tensors[0].device, call).items():
            if name in self.broken or self._is_left_out(name, tensors):
                continue
            try:
                run: Any = prepare(self.found, tensors, call)
                if who != name:
                    run.who = who
                started = time.perf_counter()
                results, checked = self._checked(name, run, tensors, call)
                self.took = time.perf_counter() - started
            except NotPlannable as reason:
                self._declines(name, reason)
                continue
            except IndexOutOfRange:
                raise
            except Exception as error:
                self._fails(name, error)
                continue
            self.short_of_memory.pop(name, None)
            if checked and self._decided(name, run, results, tensors, call):
                self._keep(kind, name, run)
            self.say(getattr(run, "who", name))
            return results
        return None

    def _is_left_out(self, name: str, tensors: Tensors) -> bool:
        """Whether an executor is not to be tried, as those before it have failed."""
        return False

    def _chosen(self, kind: tuple, tensors: Tensors, call: RegionCall) -> list[torch.Tensor] | None:
        """The results by the rival that was found faster for such sizes; None if there is none, or it fails."""
        name, part = self.choices.get(library_choice.size_class(tensors[0].device, call.sizes), ("", 1.0))
        if not name or name in self.broken or call.deterministic:
            return None
        try:
            if name == executors.COMPILED and capturing(tensors[0].device):
                return None  # it would compile now
            run: Any = self.rivals(tensors, call)[name](self.found, tensors, call)
            results = run(tensors)
        except Exception as error:  # these tensors do not suit it: the plan runs them
            if name == executors.ORIGINAL and library_choice.is_of_the_program(error):
                raise
            return None
        run.who = f"{name}, measured at {part:.2f} of the plan's time"
        if name not in (executors.ORIGINAL, executors.COMPILED, *executors.TILES):
            run.who += f", assuming {library_kernels.ASSUMED}"
        self._keep(kind, name, run)
        self.say(run.who)
        return results

    def _without_a_long_wait(self, kind: tuple, tensors: Tensors, call: RegionCall) -> list[torch.Tensor] | None:
        """The original calls' results where a plan's first run on a CPU takes several times as long: it is given up.

        Example: in training, the tiled executor takes 10 times eager's time for scores Σ_d |q_d - k_d|, in seconds.
        """
        size = library_choice.size_class(tensors[0].device, call.sizes)
        if tensors[0].device.type != "cpu" or size in self.choices or size in self.seen or unfit(self.found, call):
            return None
        if executors.ORIGINAL not in self.rivals(tensors, call) or self.found.program.draws:
            return None
        try:
            took = library_choice.seconds_once(executors.original(self.found, tensors, call), tensors)
        except Exception as error:  # such as for tangents, where torch's own kernel has none
            if library_choice.is_of_the_program(error):
                raise
            return None
        inputs = dict(zip(self.found.names, tensors))
        most = library_choice.MOST_TIMES * took
        if took < library_choice.SHORT_RUN or TILED.finishes(self.found.plan, inputs, call.sizes, most):
            return None
        self._choose(size, (executors.ORIGINAL, 1 / library_choice.MOST_TIMES))
        return self._chosen(kind, tensors, call)

    def _decided(
        self, name: str, run: executors.Run, results: list[torch.Tensor], tensors: Tensors, call: RegionCall
    ) -> bool:
        """Whether the executor is to run calls of this kind from now on; a class of sizes is measured once.

        On a CPU a class is measured at its second call, as many have no second, or at the first if that was long. On a
        GPU the first call compiles and compares anyway, and the second may be captured in a graph.
        """
        others = {n: prepare for n, prepare in self.rivals(tensors, call).items() if n != name}
        size = library_choice.size_class(tensors[0].device, call.sizes)
        if not others or size in self.choices:
            return True
        if capturing(tensors[0].device):
            return False
        if not tensors[0].is_cuda and size not in self.seen and self.took < library_choice.LONG_RUN:
            self.seen.add(size)
            return False
        self._compare_rivals(size, run, results, tensors, call, others)
        return not self.choices[size][0]

    @stage("rivals")
    def _compare_rivals(self, size, run, results, tensors, call, others) -> None:
        ready, wrong = self._ready_rivals(others, tensors, call), self._wrong(results, tensors, call)
        least = library_choice.least_seconds(self.found, ready, tensors, call)
        known = 0.0 if tensors[0].is_cuda else self.took
        self._choose(size, library_choice.fastest(run, ready, tensors, wrong, least, known))

    def _choose(self, size: str, choice: tuple[str, float]) -> None:
        """Keeps who runs a class of sizes, here and on disk: a rival, or "" for the plan, and its part of the time."""
        self.choices[size] = choice
        keep(self.found.key, choices=self.choices)
        if choice[0] == executors.COMPILED and library_choice.share_of_compiled(self.found) is not None:
            library_choice.LEFT_TO_INDUCTOR.append(self.region)

    def rivals(self, tensors: Tensors, call: RegionCall) -> dict[str, executors.Prepare]:
        """Who may run a call instead of the plan, by name."""
        return library_choice.rivals(self.found, tensors, call)

    def _ready_rivals(
        self, others: dict[str, executors.Prepare], tensors: Tensors, call: RegionCall
    ) -> dict[str, executors.Run]:
        ready = {}
        for name, prepare in others.items():
            try:
                ready[name] = self.ahead.rivals.get(name) or prepare(self.found, tensors, call)
            except (OnepassError, NotPlannable):  # it does not take these tensors
                continue
        return ready

    def _wrong(self, expected: list[torch.Tensor], tensors: Tensors, call: RegionCall) -> Callable:
        """The original calls are right by definition; another rival's results are compared with the plan's."""

        def reason(name: str, results: list[torch.Tensor]) -> str | None:
            if name == executors.ORIGINAL:
                return None
            pairs = self._compared(results, expected, tensors, call)
            return next(filter(None, (mismatch(*pair, tensors) for pair in pairs)), None)

        return reason

    def _keep(self, kind: tuple, name: str, run: executors.Run) -> None:
        if len(self.ready) >= MAX_KINDS_OF_CALLS:
            self._forget_ready()
        self.ready[kind] = (name, run)
        self.last, self.latest = None, kind

    def _declines(self, name: str, reason: Exception) -> None:
        """An executor that has no kernel for the plan is no failure, but is not asked again."""
        self.broken.add(name)
        self.declined.append(said := f"executor {name} has no kernel for it: {reason}")
        records.note(self.found.report.key, said)

    def _fails(self, name: str, error: Exception) -> None:
        """An executor that failed is used no more in this process; if strict, its error goes to the caller.

        Who lacked memory is asked again at the next call: others fill a GPU, and a smaller batch may follow.
        """
        if self.found.options.strict:
            raise error
        if isinstance(error, torch.OutOfMemoryError) and self.short_of_memory[name] < MAX_SHORT_OF_MEMORY:
            self.short_of_memory[name] += 1
            records.note(self.found.report.key, f"executor {name} lacked memory at some calls; others ran them")
            return
        self.broken.add(name)
        self.ready = {kind: known for kind, known in self.ready.items() if known[0] != name}
        self.last = None
        tell(self.found.report.key, f"executor {name} failed and is not used again: {one_line(error)}")

    def say(self, who: str) -> None:
        """Who ran, for the report."""
        if who == executors.ORIGINAL:
            falls_back(f"no kernel runs the region at {', '.join(self.found.report.places)}")
        if who != self.ran:
            self.ran = who
            records.ran(self.found.report.key, who)

    def order(self, device: torch.device, call: RegionCall) -> dict[str, tuple[str, executors.Prepare]]:
        """Who runs a call of the plan, best first: (its name in the report, what prepares it); what was tuned leads."""
        unfitting = unfit(self.found, call)
        why = unfitting or self._stores_too_much(call)
        if why and not unfitting and self.found.options.invariant:
            raise ExecutorError(f"{NOT_INVARIANT}: {why}")
        if why:
            records.note(self.found.report.key, f"{executors.ORIGINAL} run at some sizes: {why}")
            return {executors.ORIGINAL: (executors.ORIGINAL, executors.original)}
        said = executors.by_measurement(self.preference(device), self.found, call.sizes)
        order = {name: (who, executors.EXECUTORS[name]) for name, who in said.items()}
        settings = self.tuned.get(library_choice.size_class(device, call.sizes)) if self.tuned else None
        if settings is None or self.found.options.executor != "auto" or device.type != "cuda" or call.deterministic:
            return order  # what was tuned was chosen by timing, as rivals are
        tuned = f"tuned: {', '.join(f'{name} {value}' for name, value in sorted(settings.items()))}"
        return {tuned: (tuned, executors.tuned(settings)), **order}

    def _stores_too_much(self, call: RegionCall) -> str:
        """Why the plan's kernels are not used at the sizes of a call; "" if they may be."""
        found = self.found
        if found.options.executor == "tiled" or not stores_too_much(found.plan, found.program, call.sizes):
            return ""
        return STORES_TOO_MUCH

    def preference(self, device: torch.device) -> tuple[str, ...]:
        """Who runs the plan on this device, best first; worked out once."""
        if device not in self.orders:
            asked = self.found.options.executor
            self.orders[device] = executors.preference(asked, self.found.plan, device)
            if asked not in ("auto", *self.orders[device]):
                self._cannot(f"executor {asked} needs a GPU, and the tensors are on {device}: tiled runs")
        return self.orders[device]

    def _cannot(self, sentence: str) -> None:
        """What was asked for is not to be had: said in the report; if strict, an error."""
        if self.found.options.strict:
            raise ExecutorError(sentence)
        tell(self.found.report.key, sentence)

    def _checked(
        self, name: str, run: executors.Run, tensors: Tensors, call: RegionCall
    ) -> tuple[list[torch.Tensor], bool]:
        """The results, and whether they are known to be right: a kernel's first ones are compared with the tiled's."""
        kind = f"{name} {'deterministic ' if call.deterministic else ''}{_specialisation(tensors, call.sizes)}"
        if name in ("tiled", executors.ORIGINAL) or kind in self.validated or not tensors[0].is_cuda:
            return run(tensors), True
        return self.validate(kind, run, tensors, call)

    def validate(
        self, kind: str, run: executors.Run, tensors: Tensors, call: RegionCall
    ) -> tuple[list[torch.Tensor], bool]:
        """A wrong kernel is never used. A graph capture cannot wait for a comparison: it gets the original calls."""
        if capturing(tensors[0].device):
            return self._unvalidated(tensors, call), False
        with stage("validation"):
            expected = self.ahead.expected or self._expected(tensors, call)
        results = run(tensors)
        with stage("validation"):
            wrong = self._mismatched(results, expected, tensors, call)
        unclear = bool(wrong) and all(undecided(r, e, tensors) for r, e, _ in wrong)
        smaller = self._mismatched_on_smaller(run, tensors, call) if unclear else None
        if smaller is not None:
            wrong, results = smaller, results if self.found.options.invariant else expected
        elif unclear and self.undecided[kind] < MAX_UNDECIDED_COMPARISONS:
            self.undecided[kind] += 1  # the next call may tell
            return results if self.found.options.invariant else expected, False
        if wrong:
            raise ExecutorError(f"the kernel's result differs from the tiled executor's: {wrong[0][-1]}")
        self.validated.add(kind)
        keep(self.found.key, validated=sorted(self.validated))
        return results, True

    def _mismatched_on_smaller(self, run: executors.Run, tensors: Tensors, call: RegionCall) -> list[Mismatch] | None:
        """What a kernel has wrong where its results are small enough for their dtypes, as these are beyond its end;
        None where no such inputs are known."""
        for smaller in self._smaller(tensors):
            expected = self._expected(smaller, call)
            if all(x.isfinite().all() for x in expected if x.is_floating_point()):
                return self._mismatched(run(smaller), expected, smaller, call)
        return None

    def _smaller(self, tensors: Tensors) -> Iterator[Tensors]:
        """Other inputs, laid out alike, with smaller and smaller results; none where no such inputs are known."""
        return iter(())

    def _mismatched(
        self, results: list[torch.Tensor], expected: list[torch.Tensor], tensors: Tensors, call: RegionCall
    ) -> list[Mismatch]:
        """The pairs that differ by more than rounding, and by how much. What rounding does here is looked at only
        where some pair seems to."""
        known = RoundingFacts(computed_dtypes(self.found.plan))
        pairs = self._compared(results, expected, tensors, call)
        if not any(mismatch(*pair, tensors, known) for pair in pairs):
            return []
        others = self._expected(moved(tensors), call)
        moves = [other if other.is_floating_point() else None for other in others]
        reasons = [mismatch(*pair, tensors, replace(known, moved=other)) for pair, other in zip(pairs, moves)]
        return [(*pair, reason) for pair, reason in zip(pairs, reasons, strict=True) if reason]

    def _compared(
        self, results: Sequence[torch.Tensor], expected: Sequence[torch.Tensor], tensors: Tensors, call: RegionCall
    ) -> list[Pair]:
        """The pairs to compare: of positions that differ, the elements there, which the tiled executor computes."""

        def compute(program: Program, given: Tensors, call: RegionCall) -> Sequence[torch.Tensor]:
            found = make(program, replace(self.found.options, invariant=False, executor="tiled", verify="nothing"))
            kind = call_of(found, given, [call.sizes[symbol] for symbol in found.free_symbols])
            return executors.EXECUTORS["tiled"](found, given, kind)(given)

        return compared_by_elements(results, expected, self.found.program, (tensors, call), compute)

    def _unvalidated(self, tensors: Tensors, call: RegionCall) -> list[torch.Tensor]:
        """The results where no kernel may run yet. Raises ExecutorError where the original calls have other bits."""
        if self.found.options.invariant:
            raise ExecutorError(f"{NOT_INVARIANT}: call it once before a capture, so that its kernel is checked")
        return executors.original(self.found, tensors, call)(tensors)

    def _expected(self, tensors: Tensors, call: RegionCall) -> list[torch.Tensor]:
        """What a kernel is compared with: the plan tile by tile, or the original calls where memory is too short."""
        try:
            return executors.EXECUTORS["tiled"](self.found, tensors, call)(tensors)
        except torch.OutOfMemoryError:
            return executors.original(self.found, tensors, call)(tensors)


def _specialisation(tensors: Tensors, sizes: dict[str, int]) -> str:
    """What a kernel compiler specialises on: sizes, strides and addresses by divisibility and being one."""
    numbers = [*sizes.values(), *(n for t in tensors for n in (*t.shape, *t.stride(), t.data_ptr()))]
    return "".join("1" if n == 1 else "d" if n % 16 == 0 else "." for n in numbers)


def one_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def tell(key: str, sentence: str) -> None:
    """Says what was survived, in the log and in the region's report."""
    log.warning("onepass: %s (region %s)", sentence, key[:12])
    records.note(key, sentence)

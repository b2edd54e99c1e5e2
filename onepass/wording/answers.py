"""The four questions that a reader asks of a report, each with a short answer and a few lines behind it.

The text, the page and JSON all show these. An estimate that cannot be made is left out. Example: "Is it fused?" has the
answer "Yes: 1 region", and the line "in 1 graph, with the default options".
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ..lowering.plan.device import H200
from .text import bytes_text, first_clause, nothing_lines, runner, short_place

Report = Any
RegionReport = Any
log = logging.getLogger(__name__)
LEAST_GAIN = 1.1  # under which no gain in time is named
MAX_REASONS_NAMED = 4


@dataclass(frozen=True)
class Answer:
    """One of the four questions, its answer in a few words, what else there is to say. tone: good, part or bad."""

    question: str
    answer: str
    tone: str
    lines: tuple[str, ...] = ()


@dataclass(frozen=True)
class Speed:
    """Estimated seconds on a GPU, for all occurrences: fused, and the least that eager takes to move bytes and launch.
    """

    fused: float | None
    eager: float | None

    @property
    def times(self) -> float | None:
        """How many times faster the fused form is at least; None where that is not known."""
        return self.eager / self.fused if self.eager and self.fused else None


def answers(report: Report) -> tuple[Answer, ...]:
    """The questions with their answers, in the order in which a reader asks."""
    return (_is_fused(report), _why_not(report), _how_much(report), _what_runs(report))


def speed_of(region: RegionReport) -> Speed:
    """The estimated times of a region; None of what is not known."""
    if region.data is None:
        return Speed(None, None)
    fused, eager, times = _seconds(region), None, region.count
    if region.bytes[0] is not None and region.data.calls is not None:
        eager = max(region.bytes[0] / H200.memory_bytes, region.data.calls * H200.launch_seconds)
    return Speed(fused and fused * times, eager and eager * times)


def _seconds(region: RegionReport) -> float | None:
    """Of the region's kernels. A report is for reading: what cannot be estimated is not said."""
    from ..lowering.executors import GLUON  # needs torch, which reading a record does not

    try:
        return GLUON.seconds(region.data.plan, region.data.sizes)
    except Exception as error:
        log.debug("onepass: a time is left out: %s", error, exc_info=error)
        return None


def milliseconds(seconds: float) -> str:
    """A time for readers."""
    return f"{1e3 * seconds:.2g} ms" if seconds >= 1e-6 else "under 0.001 ms"


def _is_fused(report: Report) -> Answer:
    question, fused, left = "Is it fused?", report.fused, report.left
    options = f", with {report.options}" if report.options else ""
    lines = (f"in {_many(report.graphs, 'graph')}{options}", *(f"law {law}" for law in report.laws))
    if fused and not left:
        return Answer(question, f"Yes: {_many(fused, 'region')}", "good", lines)
    if fused:
        return Answer(question, f"In part: {fused} of {fused + left} regions", "part", lines)
    said = f"No: {_many(left, 'region')} left as written" if left else "No: nothing was found to fuse"
    return Answer(question, said, "bad", lines)


def _why_not(report: Report) -> Answer:
    question = "Why not?"
    lines = [f"{first_clause(r.reason)} ({short_place(r)})" for r in report.refusals]
    lines += [f"a failure inside of onepass: {failure}" for failure in report.failures]
    lines += [f"graph break at {short_place(found)}: {first_clause(found.reason)}" for found in report.breaks]
    nothing, again = tuple(nothing_lines(report)), sum(region.count for region in report.regions if region.recomputed)
    head = "See below what to change" if lines else "There is nothing"
    if report.fused and not report.left:
        head = _all_fused(len(report.breaks), again)
    lines += [f"only the forward is fused: {first_clause(r.recomputed)}" for r in report.regions if r.recomputed]
    if not (lines or nothing):
        return Answer(question, head, "good")
    shown = tuple(dict.fromkeys(lines))
    more = ("…",) if len(shown) > MAX_REASONS_NAMED else ()
    return Answer(question, head, "part" if report.fused else "bad", shown[:MAX_REASONS_NAMED] + more + nothing)


def _all_fused(breaks: int, again: int) -> str:
    """What is left to say where each region is fused. again: how many have a backward by the original calls."""
    if again:
        return f"The original calls run the backward of {_many(again, 'region')}"
    return "All that was found is fused" + (f"; {_many(breaks, 'graph break')} may hide more" if breaks else "")


def _how_much(report: Report) -> Answer:
    question = "How much faster?"
    if not report.fused:
        return Answer(question, "Nothing changes", "bad")
    before, after = report.bytes
    lines = [f"passes over the data: {report.passes[0]} → {report.passes[1]}"]
    lines.append(f"bytes moved: {bytes_text(before)} → {bytes_text(after)}" + _ratio(before, after))
    speed = _total(map(speed_of, report.regions))
    if speed.fused is None:
        lines.append("no time is estimated: a size is not known, or there is no kernel of such a form")
        return Answer(question, f"{report.passes[0]} passes become {report.passes[1]}", "good", tuple(lines))
    lines.append(f"estimated on an {H200.name}, forward: {milliseconds(speed.fused)}")
    if speed.eager is not None:
        lines.append(f"as written, at least: {milliseconds(speed.eager)}, for its bytes or its launches alone")
    if speed.times is not None and speed.times >= LEAST_GAIN:
        return Answer(question, f"At least {speed.times:.2g} times, by estimate", "good", tuple(lines))
    lines.append("all of what eager takes is not estimated, and nothing was measured")
    return Answer(question, "Not known: the estimates do not decide it at these sizes", "part", tuple(lines))


def _ratio(before: int | None, after: int | None) -> str:
    return f", {before / after:.3g} times fewer" if before and after and before > after else ""


def _total(speeds: Iterable[Speed]) -> Speed:
    speeds = [*speeds]
    add = lambda values: None if any(x is None for x in values) else sum(values)
    return Speed(add([s.fused for s in speeds]), add([s.eager for s in speeds]))


def _what_runs(report: Report) -> Answer:
    question = "What runs on my GPU?"
    if not report.regions:
        return Answer(question, "What PyTorch runs without onepass", "bad")
    devices = tuple(dict.fromkeys(region.device for region in report.regions))
    lines = [*dict.fromkeys(runner(region) for region in report.regions)]
    forms = dict.fromkeys(kernel.form.splitlines()[0] for kernel in report.kernels if kernel.form)
    lines += [f"on a Hopper GPU: {form}" for form in forms]
    if "cuda" in devices:
        return Answer(question, f"{_many(len(report.kernels), 'kernel')} on {_gpu()}", "good", tuple(lines))
    where = {"cpu": "a CPU", "meta": "no device"}.get(devices[0], devices[0])
    return Answer(question, f"These inputs are on {where}", "part", tuple(lines))


def _gpu() -> str:
    """The GPU's name, where this process uses one: asking would start it."""
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_initialized() else "a GPU"


def _many(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"

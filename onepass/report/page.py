"""A report as one self-contained page of HTML: four questions with answers, then a card for each region.

Everything is escaped by Jinja2. A page has at most MAX_BYTES: what makes it larger is shown in less detail, and the
page says so. Example: `page(onepass.explain(attention, q, k, v))`.
"""

from __future__ import annotations

import base64
import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from .derivation_view import MARKS, LawView
from .marked_source import SourceView, source_views
from .region_view import RegionView, SpeedView, region_view
from .text import bytes_text, first_clause, nothing_lines, runner, short_place, way_out

Report = Any
Refused = Any
log = logging.getLogger(__name__)
MAX_BYTES = 500_000
MAX_REGIONS = 100  # that have a card, at most
TEMPLATES = Path(__file__).parent / "templates"
LEAST_GAIN = 1.1  # under which no gain in time is named


@dataclass(frozen=True)
class Detail:
    """How much a page shows. steps: of a derivation. text: characters of a form. regions: that have a card."""

    steps: int
    text: int
    regions: int
    sources: bool = True
    certificate: bool = True


DETAILS = (  # the first with which a page is small enough
    Detail(steps=400, text=20_000, regions=100),
    Detail(steps=60, text=8_000, regions=100),
    Detail(steps=25, text=4_000, regions=60, sources=False),
    Detail(steps=10, text=2_000, regions=40, sources=False, certificate=False),
    Detail(steps=0, text=500, regions=20, sources=False, certificate=False),
)
@dataclass(frozen=True)
class Answer:
    """One of the four questions, its answer in a few words, what else there is to say. tone: good, part or bad."""

    question: str
    answer: str
    tone: str
    lines: tuple[str, ...] = ()


@dataclass(frozen=True)
class LeftView:
    """A region that stays as written, a failure, or a graph break: why, where, and what to change."""

    kind: str
    reason: str
    where: str
    way_out: str
    sources: tuple[SourceView, ...] = ()


def page(report: Report) -> str:
    """The page of a report."""
    text = ""
    regions = [region_view(region, n) for n, region in enumerate(report.regions[:MAX_REGIONS], 1)]
    written = base64.b64encode(report.certificate().encode()).decode() if report.regions else ""
    for detail in DETAILS:
        has_room = detail.certificate and (detail is DETAILS[0] or len(written) <= MAX_BYTES // 2)
        text = _page(report, regions, detail, written if has_room else "")
        if len(text.encode()) <= MAX_BYTES:
            break
    return text


def _page(report: Report, regions: list[RegionView], detail: Detail, certificate: str) -> str:
    shown = regions[: detail.regions]
    left = [*_left(report)]
    laws: dict[str, LawView] = {law.name: law for region in shown for law in region.laws}
    return _environment().get_template("page.html").render(
        title=report.title,
        answers=_answers(report, regions),
        regions=shown,
        left=left[: detail.regions],
        laws=[*laws.values()],
        certificate=certificate,
        missing=[*_missing(report, detail, len(left), bool(certificate))],
        detail=detail,
    )


@lru_cache(1)
def _environment():
    """Jinja2 is loaded here: nobody else needs it."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    made = Environment(
        loader=FileSystemLoader(TEMPLATES), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    made.filters |= {"marked": _marked, "clipped": _clipped, "milliseconds": _milliseconds}
    return made


def _marked(text: str):
    """The text, escaped, with MARKS as elements."""
    from markupsafe import Markup, escape

    return Markup(str(escape(text)).replace(MARKS[0], "<mark>").replace(MARKS[1], "</mark>"))


def _clipped(text: str, most: int) -> str:
    """The text, or its beginning. No mark stays open."""
    if len(text) <= most:
        return text
    cut = text[:most]
    return cut + MARKS[1] * (cut.count(MARKS[0]) - cut.count(MARKS[1])) + " … (the rest is left out)"


def _milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:.2g} ms" if seconds >= 1e-6 else "under 0.001 ms"


# The four questions ---------------------------------------------------------------------------------------------------


def _answers(report: Report, regions: list[RegionView]) -> list[Answer]:
    return [_is_fused(report), _why_not(report), _how_much(report, regions), _what_runs(report)]


def _is_fused(report: Report) -> Answer:
    question, fused, left = "Is it fused?", report.fused, report.left
    lines = (f"in {report.graphs} graph{'' if report.graphs == 1 else 's'}", *(f"law {law}" for law in report.laws))
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
    lines += nothing_lines(report)
    if not lines:
        return Answer(question, "All that was found is fused", "good")
    shown = tuple(dict.fromkeys(lines))
    head = "See below what to change" if report.refusals or report.failures or report.breaks else "There is nothing"
    return Answer(question, head, "part" if report.fused else "bad", shown[:4] + (("…",) if len(shown) > 4 else ()))


def _how_much(report: Report, regions: list[RegionView]) -> Answer:
    question = "How much faster?"
    if not report.fused:
        return Answer(question, "Nothing changes", "bad")
    before, after = report.bytes
    lines = [f"passes over the data: {report.passes[0]} → {report.passes[1]}"]
    lines.append(f"bytes moved: {bytes_text(before)} → {bytes_text(after)}" + _ratio(before, after))
    speed = _total(regions)
    if speed.fused is None:
        lines.append("no time is estimated: a size is not known, or there is no kernel of such a form")
        return Answer(question, f"{report.passes[0]} passes become {report.passes[1]}", "good", tuple(lines))
    lines.append(f"estimated on an H200, forward: {_milliseconds(speed.fused)}")
    if speed.eager is not None:
        lines.append(f"as written, for its bytes or its launches alone: {_milliseconds(speed.eager)}")
    if speed.times is not None and speed.times >= LEAST_GAIN:
        return Answer(question, f"At least {speed.times:.2g} times, by estimate", "good", tuple(lines))
    return Answer(question, "Not measurably at these sizes, by estimate", "part", tuple(lines))


def _ratio(before: int | None, after: int | None) -> str:
    return f", {before / after:.3g} times fewer" if before and after and before > after else ""


def _total(regions: Iterable[RegionView]) -> SpeedView:
    speeds = [region.speed for region in regions]
    add = lambda values: None if any(x is None for x in values) else sum(values)
    return SpeedView(add([s.fused for s in speeds]), add([s.eager for s in speeds]))


def _what_runs(report: Report) -> Answer:
    question = "What runs on my GPU?"
    if not report.regions:
        return Answer(question, "What PyTorch runs without onepass", "bad")
    devices = tuple(dict.fromkeys(region.device for region in report.regions))
    lines = [*dict.fromkeys(runner(region) for region in report.regions)]
    forms = dict.fromkeys(kernel.form.splitlines()[0] for kernel in report.kernels if kernel.form)
    lines += [f"on a Hopper GPU: {form}" for form in forms]
    if "cuda" in devices:
        name = torch.cuda.get_device_name() if torch.cuda.is_initialized() else "a GPU"
        return Answer(question, f"{_many(len(report.kernels), 'kernel')} on {name}", "good", tuple(lines))
    where = {"cpu": "a CPU", "meta": "no device"}.get(devices[0], devices[0])
    return Answer(question, f"These inputs are on {where}", "part", tuple(lines))


def _many(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


# What is not fused ----------------------------------------------------------------------------------------------------


def _left(report: Report) -> Iterator[LeftView]:
    for kind, found in (*(("left", r) for r in report.refusals), *(("break", b) for b in report.breaks)):
        sources = tuple(source_views([found.where]))
        where = f"{sources[0].name}:{found.line}" if sources else found.where
        yield LeftView(kind, found.reason, where, way_out(found), sources)
    for failure in report.failures:
        yield LeftView("failed", failure, "", FAILURE_WAY_OUT)


FAILURE_WAY_OUT = 'the original runs; this is a fault of onepass, and options={"strict": True} raises the error itself'


def _missing(report: Report, detail: Detail, left: int, certificate: bool) -> Iterator[str]:
    """What the page leaves out to stay small."""
    if detail is DETAILS[0]:
        return
    yield f"derivations show at most {detail.steps} steps, and forms at most {detail.text} characters"
    if len(report.regions) > detail.regions or left > detail.regions:
        yield f"at most {detail.regions} cards of a kind are shown, of {len(report.regions)} fused and {left} others"
    if not detail.sources:
        yield "the kernels' sources: print(report) names their files"
    if not certificate:
        yield "the certificate: python -m onepass explain FILE:FUNC --certificate PATH writes it"

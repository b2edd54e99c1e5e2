"""A report as one self-contained page of HTML: four questions with answers, then a card for each region.

Everything is escaped by Jinja2. A page has at most MAX_BYTES: what makes it larger is shown in less detail, and the
page says so. Example: `page(onepass.explain(attention, q, k, v))`.
"""

from __future__ import annotations

import base64
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from ..wording.answers import milliseconds
from ..wording.text import way_out
from .derivation_view import MARKS, LawView
from .marked_source import SourceView, source_views
from .region_view import RegionView, region_view

Report = Any
Refused = Any
log = logging.getLogger(__name__)
MAX_BYTES = 500_000
MAX_REGIONS = 100  # that have a card, at most
TEMPLATES = Path(__file__).parent / "templates"


@dataclass(frozen=True)
class Detail:
    """How much a page shows. steps: of a derivation. text: characters of a form. regions: that have a card."""

    steps: int
    text: int
    regions: int
    sources: bool = True
    certificate: bool = True
    schedules: bool = True


DETAILS = (  # the first with which a page is small enough
    Detail(steps=400, text=20_000, regions=100),
    Detail(steps=60, text=8_000, regions=100),
    Detail(steps=25, text=4_000, regions=60, sources=False),
    Detail(steps=10, text=2_000, regions=40, sources=False, certificate=False, schedules=False),
    Detail(steps=0, text=500, regions=20, sources=False, certificate=False, schedules=False),
)


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
        answers=report.answers,
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
    made.filters |= {"marked": _marked, "clipped": _clipped, "milliseconds": milliseconds}
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
    if not detail.schedules:
        yield "the pictures of schedules over time: onepass.explain of one of these functions alone draws them"
    if not certificate:
        yield "the certificate: python -m onepass explain FILE:FUNC --certificate PATH writes it"

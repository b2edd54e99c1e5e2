"""A whole report as text, and as a notebook's cell: the four questions first, then each region, then what is left.

What only says how the engine came to its form is shown where it is asked for. Example of a first line:
`Is it fused?          Yes: 1 region`.
"""

from __future__ import annotations

import html
from collections.abc import Iterator
from typing import Any

from ..lowering.stage_times import shown
from .answers import answers
from .text import bytes_text, headline, region_lines, way_out

Report = Any
QUESTION = 22  # characters of a question and the space behind it


def report_lines(report: Report, verbose: bool = False) -> Iterator[str]:
    """The text of a report, line by line. verbose: also the search, the cache, the check of the plan, settings."""
    for one in answers(report):
        yield f"{one.question:{QUESTION}}{one.answer}"
        yield from (f"{'':{QUESTION}}{line}" for line in one.lines)
    if report.title:
        yield f"\n{report.title}"
    for number, region in enumerate(report.regions, 1):
        yield f"\nregion {number}"
        yield from (f"  {line}" for line in region_lines(region, verbose))
    if verbose and report.seconds:
        yield f"\nseconds of the compilation: {shown(report.seconds)}"
    for refused in report.refusals:
        yield f"\nleft as written: {refused.where}\n  {refused.reason}\n  way out: {way_out(refused)}"
    for failure in report.failures:
        yield f"\nfailed inside onepass, the original runs: {failure}"
    for found in report.breaks:
        yield f"\ngraph break: {found.where}\n  {found.reason}; nothing is fused across it"


def notebook_cell(report: Report) -> str:
    """The report for a notebook: its headline, a table of its regions, and its text, folded."""
    head, text = html.escape(headline(report)), html.escape(report.text(verbose=True))
    table = _table(report) if report.regions else ""
    return f"<p>{head}</p>{table}<details><summary>everything</summary><pre>{text}</pre></details>"


def _table(report: Report) -> str:
    """The regions as a table; every piece of it is escaped."""
    rows = [
        ("at", "passes", "bytes", "rules", "kernels"),
        *((", ".join(r.places), _arrow(r.passes, str), _arrow(r.bytes, bytes_text), str(len(r.derivation)),
           ", ".join(k.name for k in r.kernels)) for r in report.regions),
    ]  # fmt: skip
    tags = ["th", *["td"] * len(report.regions)]
    cells = ["".join(f"<{tag}>{html.escape(c)}</{tag}>" for c in row) for row, tag in zip(rows, tags, strict=True)]
    table = "".join(f"<tr>{row}</tr>" for row in cells)
    return f"<table>{table}</table>"


def _arrow(pair, say) -> str:
    return f"{say(pair[0])} → {say(pair[1])}"

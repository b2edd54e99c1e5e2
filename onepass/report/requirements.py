"""The options require and invariant: whether a report says that all that was found was fused, and what to do else.

A sentence for each kind of refusal says what to change. Example: for "autocast", enter it around the compiled call.
"""

from __future__ import annotations

from collections.abc import Iterator

from .. import messages
from ..errors import NotFused
from ..wording.text import way_out
from .records import Report


def hold(report: Report, require: str, *, part: bool = False) -> None:
    """Raises NotFused, with each reason, place and way out, if the report does not have what is required.

    require: "nothing", "found" (what was found is fused, as an invariant result needs) or "all" (and something is).
    part: the report is of a part of a function, and another part may have the regions.
    """
    lines = [*_left_lines(report, by_choice=False)]
    if require == "nothing" or (not lines and (require == "found" or report.fused or part)):
        return
    if not lines:
        lines = [*_left_lines(report, by_choice=True)] or [*_nothing_lines(report)]
    name = "invariant=True" if require == "found" else 'require="all"'
    head = f"{name} does not hold: {report.fused} fused, {report.left} not"
    last = "without this option, what is not fused runs as written"
    raise NotFused("\n".join((head, *lines, last)))


def _left_lines(report: Report, *, by_choice: bool) -> Iterator[str]:
    """Two lines for each region that is left as written, and for each failure. by_choice: or because Inductor's is
    faster.
    """
    for refused in report.refusals:
        if refused.code == messages.ONE_PRODUCT_IN_TRAINING.code and not by_choice:
            continue
        yield f"  {refused.where}: {refused.reason}"
        yield f"    way out: {way_out(refused)}"
    for failure in report.failures:
        yield f"  failed inside onepass: {failure}"
        yield '    way out: this is a fault of onepass; options={"strict": True} raises the error itself'


def _nothing_lines(report: Report) -> Iterator[str]:
    """Why nothing was found, as far as it is known."""
    yield "  nothing was found to fuse: two products with a reduction (a softmax, a sum, a maximum) between them"
    for found in report.breaks:
        yield f"  {found.where}: a graph ends here ({found.reason}), and nothing is fused across it"
    yield "    way out: compile the function that has the attention; fullgraph=True makes it one graph"

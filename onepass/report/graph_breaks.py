"""Where Dynamo ends a graph before the function ends, and its reason: nothing is fused across such a place.

Read from what Dynamo hands over with a graph and from what it counts; nothing is run for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch
from torch import fx

from .. import messages
from .records import Refused, Report

_TORCH = str(Path(torch.__file__).parent)
_COUNTED = ("graph_break", "unimplemented")  # what Dynamo counts: breaks, and whatever it met that it cannot trace


def break_after(gm: fx.GraphModule | None) -> Refused | None:
    """The break that this graph of Dynamo's ends at, with the user's line; None where the function returns."""
    found = getattr(gm, "compile_subgraph_reason", None)
    if found is None or not found.graph_break:
        return None
    frames = [f for f in found.user_stack if not f.filename.startswith(_TORCH)] or list(found.user_stack)
    file, line = (frames[-1].filename, frames[-1].lineno or 0) if frames else ("", 0)
    return _break(_said(found.reason), file, line)


def with_break(report: Report, gm: fx.GraphModule | None) -> Report:
    """The report of a graph, with the break that it ends at."""
    ends = break_after(gm)
    return report if ends is None else replace(report, breaks=(ends,))


@contextmanager
def counted() -> Iterator[dict[str, list[str]]]:
    """Gives a dict that holds, after the block, the reasons that Dynamo counted in it, by the kind of count."""
    from torch._dynamo.utils import counters

    before = {name: Counter(counters[name]) for name in _COUNTED}
    reasons: dict[str, list[str]] = {}
    yield reasons
    reasons.update({name: list(map(_said, Counter(counters[name]) - before[name])) for name in _COUNTED})


def breaks_of(
    function: Callable, graphs: int, known: tuple[Refused, ...], reasons: dict[str, list[str]]
) -> tuple[Refused, ...]:
    """The breaks at graphs' ends, and those that no graph ends at: of these the function's first line is what is known.

    A function of which no graph is captured runs as Python; what Dynamo could not trace is the reason.
    """
    code = getattr(getattr(function, "forward", function), "__code__", None)
    file, line = (code.co_filename, code.co_firstlineno) if code is not None else ("", 0)
    said = [reason for reason in reasons["graph_break"] if reason not in {one.reason for one in known}]
    if not graphs:
        said = list(dict.fromkeys([*said, *reasons["unimplemented"]]))
    return (*known, *(_break(reason, file, line) for reason in said))


def _break(reason: str, file: str, line: int) -> Refused:
    found = messages.GRAPH_BREAK
    return Refused.of(found, file, line, reason=reason)


def _said(reason: str) -> str:
    """Dynamo's reason in one line: what it met, and its explanation."""
    first, *rest = (line.strip() for line in reason.splitlines() if line.strip())
    if first.startswith("generic_jump"):
        return "a branch on a tensor's value"
    explained = next((line.removeprefix("Explanation: ") for line in rest if line.startswith("Explanation: ")), "")
    return f"{first}: {explained}" if explained else first

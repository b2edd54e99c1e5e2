"""The options require and invariant: whether a report says that all that was found was fused, and what to do else.

A sentence for each kind of refusal says what to change. Example: for "autocast", enter it around the compiled call.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..errors import NotFused
from .records import Refused, Report

OTHER_WAY_OUT = "onepass.explain(function, *inputs) shows what was found; docs/limits.md lists what is refused"
WAYS_OUT = {  # kind of a refusal: what to change; where the reason itself says it, there is no entry
    "autocast": "enter autocast around the compiled call, not inside of it",
    "device": "move all inputs to one device",
    "dtype": "compute it in a floating dtype",
    "higher-order": "call it outside of that operation, or in a checkpoint",
    "in-place": "write the change as a new value: y = y + x, or torch.where",
    "invariant": "call it under torch.no_grad(), or leave the option invariant out",
    "no product before": "compute the scores by a product of two inputs, in the same graph",
    "no_grad": "compute the region and what reads it in one grad mode",
    "opaque": "write the call out: products, a softmax, a product",
    "operation": "write it in other operations, or outside of the two products",
    "random": "draw the other random numbers before the region, or after it",
    "sizes": "compile with dynamic=False, which makes the sizes numbers",
    "training": 'options={"inner": "eager"} fuses it, and its backward runs the original calls',
    "transform": "call the transform around the whole region",
    "unknown operation": "write it in other operations, or outside of the two products",
    "used outside": "compute what is also used outside from the result, or a second time",
}


def way_out(refused: Refused) -> str:
    """What to change so that the region can be fused."""
    return WAYS_OUT.get(refused.kind, OTHER_WAY_OUT)


def hold(report: Report, require: str, *, part: bool = False) -> None:
    """Raises NotFused, with each reason, place and way out, if the report does not have what is required.

    require: "nothing", "found" (what was found is fused, as an invariant result needs) or "all" (and something is).
    part: the report is of a part of a function, and another part may have the regions.
    """
    lines = [*_left_lines(report)]
    if require == "nothing" or (not lines and (require == "found" or report.fused or part)):
        return
    if not lines:
        lines = [*_nothing_lines(report)]
    name = "invariant=True" if require == "found" else 'require="all"'
    head = f"{name} does not hold: {report.fused} fused, {report.left} not"
    last = "without this option, what is not fused runs as written"
    raise NotFused("\n".join((head, *lines, last)))


def _left_lines(report: Report) -> Iterator[str]:
    """Two lines for each region that is left as written, and for each failure."""
    for refused in report.refusals:
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

"""Search: saturate the e-graph phase by phase, then extract the cheapest form.

One function, with what it found as a record. Called by the pipeline.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .cost import Target
from .engine import Limits, saturate
from .exact import extract_exactly
from .extract import extract, passes
from .rule import Rule
from .term import Term


@dataclass(frozen=True)
class Found:
    """The extracted term, the rules that fired in order of first firing, passes before and after, and statistics."""

    term: Term
    fired: tuple[str, ...]
    passes_before: int
    passes_after: int
    statistics: dict


def search(
    root: Term, phases: Mapping[str, Sequence[Rule]], limits: Limits | None = None, target: Target | None = None
) -> Found:
    """The cheapest form equal to root under the phases' rules. Raises EngineError if egglog fails."""
    egraph = saturate(root, phases, limits)
    exact = limits is not None and limits.exact
    best, how = extract_exactly(egraph, target) if exact else (extract(egraph, target), "greedy")
    statistics = {**egraph.statistics, "extraction": how}
    return Found(best, egraph.fired, passes(root), passes(best), statistics)

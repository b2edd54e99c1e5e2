"""Searches for the cheapest equal terms: saturates an e-graph phase by phase, then extracts one form of every root.

The result is deterministic. Example: with the laws of streaming.py, two passes over the scores of a softmax become one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..rewrite.rule import Rule
from ..terms.term import Term
from .cost import Target
from .engine import SearchLimits, as_roots, saturate
from .extract import extract_all, passes
from .extract_exact import extract_exactly


@dataclass(frozen=True)
class Found:
    """The extracted terms, one for each root; the rules that fired, in order; passes over data; statistics."""

    terms: tuple[Term, ...]
    fired: tuple[str, ...]
    passes_before: int
    passes_after: int
    statistics: dict

    @property
    def term(self) -> Term:
        """The first root's form."""
        return self.terms[0]


def search(
    roots: Term | Sequence[Term],
    phases: Mapping[str, Sequence[Rule]],
    limits: SearchLimits | None = None,
    target: Target | None = None,
) -> Found:
    """The cheapest forms equal to the roots under the phases' rules, in one e-graph. Raises EngineError."""
    roots = as_roots(roots)
    egraph = saturate(roots, phases, limits)
    best, how = extract_all(egraph, target), "greedy"
    if limits is not None and limits.exact and len(roots) == 1:
        term, how = extract_exactly(egraph, target)
        best = (term,)
    before, after = (max(passes(term, egraph.held) for term in terms) for terms in (roots, best))
    return Found(best, egraph.fired, before, after, {**egraph.statistics, "extraction": how})

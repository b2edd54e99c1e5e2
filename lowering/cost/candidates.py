"""What a plan may store between kernels, though it does not have to: sums, scores, and the states of a loop.

In terms a value and the stored value are one, so each candidate leaves every result as it is. A candidate is a set of
terms that only pays as a whole: without one state of a loop, the loop would run again. Example: attention to a shared
prefix and to keys of each sequence has two loops; the states of the first one are a candidate.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import prod

import torch

from ...egraph.terms.sizes import resolve
from ...egraph.terms.term import Term
from ...egraph.terms.traversal import every_reduction, subterms
from ..analysis.dim_roles import loop_reductions
from ..plan.device import COSTS
from ..plan.term_edits import renaming
from .traffic import Sizes

Candidate = tuple[Term, ...]  # each term before those that it contains


def candidates(terms: Sequence[Term], held_limit: int) -> list[Candidate]:
    """The candidates of these results. Those that differ in names of dims alone are one: all results read it."""
    loops = loop_reductions(terms, held_limit)
    found: list[Candidate] = []
    for candidate in (*_states(terms, loops), *_sums_and_scores(terms, loops)):
        if not any(_same(candidate, other) for other in found):
            found.append(candidate)
    return found


def _states(terms: Sequence[Term], loops: Sequence[Term]) -> Iterator[Candidate]:
    """The finished states of each loop, where other reductions are left for the kernels that read them."""
    for dim in dict.fromkeys(r.attrs[1] for r in loops):
        mine = {r for r in loops if r.attrs[1] == dim}
        readings = tuple(n for n in _nodes(terms) if _is_reading(n, mine))
        if readings and _has_reductions_left(terms, readings):
            yield readings


def _is_reading(node: Term, states: set[Term]) -> bool:
    if node.op in ("scale", "mantissa"):
        return node.args[0] in states
    return node in states and not node.dtype.startswith("pair")


def _has_reductions_left(terms: Sequence[Term], readings: Candidate) -> bool:
    stored = {*readings}
    outside = (n for t in terms for n in subterms(t, stored.__contains__) if n not in stored)
    return any(n.op == "reduce" for n in outside)


def _sums_and_scores(terms: Sequence[Term], loops: Sequence[Term]) -> Iterator[Candidate]:
    """Reductions inside of loops, and what a rescaled sum has as its scores."""
    inside = [r for r in every_reduction(list(terms)) if r not in loops and not r.dtype.startswith("pair")]
    scores = [r.args[0].args[0] for r in loops if r.args[0].op == "scaled"]
    for node in dict.fromkeys((*inside, *scores)):
        if node.dims and node not in terms and any(map(_takes_work, subterms(node))):
            yield (node,)


def _takes_work(node: Term) -> bool:
    return node.op == "reduce" or COSTS[node.op][1] > 0


def in_order(chosen: Iterable[Term], terms: Sequence[Term]) -> tuple[Term, ...]:
    """The chosen terms, each once, and each before those that it contains."""
    wanted = {*chosen}
    return tuple(n for n in _nodes(terms) if n in wanted)


def _nodes(terms: Sequence[Term]) -> list[Term]:
    """All nodes of the terms, each once, and each before those that it contains."""
    return list(dict.fromkeys(n for t in terms for n in subterms(t)))[::-1]


def _same(one: Candidate, other: Candidate) -> bool:
    return len(one) == len(other) and all(renaming(a, b) is not None for a, b in zip(one, other, strict=True))


def stored_bytes(candidate: Candidate, sizes: Sizes) -> int:
    """Bytes that a candidate takes between kernels."""
    return sum(_itemsize(t) * prod(resolve(d.size, sizes) for d in t.dims) for t in candidate)


def _itemsize(term: Term) -> int:
    return 4 if term.dtype == "float" else getattr(torch, term.dtype).itemsize

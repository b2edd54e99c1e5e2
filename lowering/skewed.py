"""Sums in which the difference of columns and rows picks a factor: products of matrices over the difference.

Σ_j w[i, j] · t[j - i, e] = Σ_δ w[i, i + δ] · t[δ, e]: a tile of w is skewed, column δ of row i holds w[i, i + δ], and
every row meets the same matrix. Likewise Σ_d q[i, d] · t[j - i, d] is the product of q and t, skewed back. Pure
functions over terms; used by dims.py and by the executors.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..egraph.term import Dim, Term
from .differences import along_differences, by_difference


@dataclass(frozen=True)
class Skewed:
    """`values`: factors over `dim` instead of rows and columns, its place is column - row + rows - 1. `others`: the
    rest."""

    dim: Dim
    values: tuple[Term, ...]
    others: tuple[Term, ...]


def skewed(parts: Sequence[Term], rows: Dim | None, loop: Dim, beside: Iterable[Dim] = ()) -> Skewed | None:
    """The factors of a sum over the loop's dim as such a product; beside: dims of a weight that is one factor more."""
    chosen = picked(parts, rows, loop, beside)
    return _apart(parts, chosen, rows, loop) if chosen else None


def folded(parts: Sequence[Term], rows: Dim | None, loop: Dim, summed: Dim) -> Skewed | None:
    """The factors of a sum over another dim, which rows and columns are free in, as such a product."""
    if rows is None or summed in (rows, loop):
        return None
    chosen = [part for part in parts if {rows, loop} <= part.dims and by_difference(part, rows, loop)]
    others = frozenset().union(*(part.dims for part in parts if part not in chosen))
    if len(others & {rows, loop}) != 1 or summed not in others or not any(summed in part.dims for part in chosen):
        return None
    return _apart(parts, chosen, rows, loop)


def picked(parts: Sequence[Term], rows: Dim | None, loop: Dim, beside: Iterable[Dim] = ()) -> list[Term]:
    """The factors that the difference picks, if they have a dim that no other factor has; none otherwise."""
    if rows is None:
        return []
    both = [part for part in parts if {rows, loop} <= part.dims]
    chosen = [part for part in both if part.dims > {rows, loop} and by_difference(part, rows, loop)]
    others = frozenset(beside).union(*(part.dims for part in parts if part not in chosen))
    own = frozenset().union(*(part.dims for part in chosen)) - others
    return chosen if own and rows in others else []


def _apart(parts: Sequence[Term], chosen: Sequence[Term], rows: Dim, loop: Dim) -> Skewed:
    others = tuple(part for part in parts if part not in chosen)
    return Skewed(*along_differences(chosen, rows, loop, others), others)

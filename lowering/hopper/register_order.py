"""The order of columns in which weights of one byte are an operand of a product as they lie in registers.

Invariant: the order moves columns within groups of 16 only, and `column_at` undoes `register_place`. Example: columns
0, 1, 8, 9, which one thread has of its row, stand at places 0, 1, 2, 3.
"""

from __future__ import annotations

from functools import lru_cache

from ...egraph.terms.term import Term

GROUP = 16  # columns that the order moves among themselves


@lru_cache(1024)
def register_place(column: Term) -> Term:
    """Where column 8h + 2q + l of 16 stands in a matrix of e4m3 values: at 4q + 2h + l.

    A thread of a warpgroup has weights 8h + 2q + l of its row for one q, and the product takes four neighbours from
    it. In this order of their summed dim no weight moves to another thread.
    """
    h, q = column // 8 % 2, column // 2 % 4
    return column + q * 2 - h * 6


def column_at(place: Term) -> Term:
    """The column that stands at a place: `register_place` turned around."""
    h, q = place // 2 % 2, place // 4 % 4
    return place + h * 6 - q * 2

"""Whether places that are reckoned from coordinates lie within the table that they index; eager raises where not.

With known sizes that is asked once, when a region is captured; otherwise for each new set of sizes, before a plan runs
at them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from ..egraph.terms.affine import bounds
from ..egraph.terms.evaluate import evaluate
from ..egraph.terms.ops import const, iota
from ..egraph.terms.sizes import Size, value_of
from ..egraph.terms.term import Dim, Term
from ..egraph.terms.traversal import all_dims, substitute, subterms

MAX_POSITIONS_TO_CHECK = 2**22  # of an index that are looked at one by one
MAX_POSITIONS_TO_CHECK_AT_A_CALL = 2**16  # of them where a call waits


@dataclass(frozen=True)
class BoundsCondition:
    """`place` has to be one of `size` places, which may be counted from the end where it `wraps`."""

    place: Term
    size: Size
    wraps: bool

    def holds(self, sizes: Mapping[str, int]) -> bool:
        """At these sizes, where they are no fewer than one."""
        known = {d: Dim(d.name, value_of(d.size, sizes)) for d in all_dims(self.place)}
        change = {iota(d): iota(one) for d, one in known.items()}
        change |= {n: const(value_of(n.attrs[0], sizes)) for n in subterms(self.place) if n.op == "size"}
        place, size = substitute(self.place, change), value_of(self.size, sizes)
        if min((d.size for d in known.values()), default=1) < 1:
            return True
        return out_of_bounds(place, size, self.wraps, MAX_POSITIONS_TO_CHECK_AT_A_CALL) is None


def out_of_bounds(
    place: Term, size: int, wraps: bool, most: int = MAX_POSITIONS_TO_CHECK
) -> tuple[float, float] | None:
    """The least and largest value of a place by coordinates of known sizes, if they are not within the table.

    Of more places than `most`, only those at the corners are asked: they tell where places rise or fall.
    """
    inside = lambda low, high: -size * wraps <= low and high < size
    low, high = bounds(place)
    if low is not None and high is not None and inside(low, high):
        return None
    dims = all_dims(place)
    if prod(d.size for d in dims) > most:
        place = substitute(place, {iota(d): iota(Dim(d.name, 2)) * const(d.size - 1) for d in dims if d.size > 1})
    values = evaluate(place, {})
    return None if not values.size or inside(values.min(), values.max()) else (values.min(), values.max())

"""Whether computed indices are in the bounds of the table that they index; where they are not, eager raises.

With known sizes this is checked once, when a region is captured; otherwise for each new set of sizes, before a plan
runs. Example: table[i - j + n] needs at least 2n - 1 entries.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from ..egraph.terms.affine import bounds
from ..egraph.terms.evaluate import evaluate
from ..egraph.terms.ops import const, iota
from ..egraph.terms.sizes import Size, resolve, value_of
from ..egraph.terms.term import Dim, Term
from ..egraph.terms.traversal import all_dims, substitute, subterms

MAX_POSITIONS_TO_CHECK = 2**22  # more are checked at their corners only
MAX_POSITIONS_TO_CHECK_AT_A_CALL = 2**16  # the same, where a call waits


@dataclass(frozen=True)
class BoundsCondition:
    """`index` has to be in bounds of an axis of `size` elements; where it `wraps`, -1 is the last of them."""

    index: Term
    size: Size
    wraps: bool

    def holds(self, sizes: Mapping[str, int]) -> bool:
        """Whether it is, at these sizes; true if one of them is zero."""
        known = {d: Dim(d.name, resolve(d.size, sizes)) for d in all_dims(self.index)}
        change = {iota(d): iota(one) for d, one in known.items()}
        change |= {n: const(value_of(n.attrs[0], sizes)) for n in subterms(self.index) if n.op == "size"}
        index, size = substitute(self.index, change), resolve(self.size, sizes)
        if any(resolve(d.size, {}) < 1 for d in known.values()):
            return True
        return out_of_bounds(index, size, self.wraps, MAX_POSITIONS_TO_CHECK_AT_A_CALL) is None


def out_of_bounds(
    index: Term, size: int, wraps: bool, most: int = MAX_POSITIONS_TO_CHECK
) -> tuple[float, float] | None:
    """The least and largest value of an index, if they are out of bounds; None if they are not.

    The sizes of its dims are numbers. If it has more than `most` positions, only the corners of its dims are evaluated,
    which is enough for an index that is monotonic in each of them.
    """
    inside = lambda low, high: -size * wraps <= low and high < size
    low, high = bounds(index)
    if low is not None and high is not None and inside(low, high):
        return None
    dims = all_dims(index)
    lengths = {d: resolve(d.size, {}) for d in dims}
    if prod(lengths.values()) > most:
        corners = {iota(d): iota(Dim(d.name, 2)) * const(n - 1) for d, n in lengths.items() if n > 1}
        index = substitute(index, corners)
    values = evaluate(index, {})
    return None if not values.size or inside(values.min(), values.max()) else (values.min(), values.max())

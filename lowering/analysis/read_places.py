"""How many different elements of a tensor a load reads over some places of its dims.

Indices that are sums of coordinates are counted by their span, others by the places that they depend on. It is never
less than what is read. Example: table[j - i] over 64 rows and 128 columns reads 191 elements.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from math import prod

from ...egraph.terms.affine import affine
from ...egraph.terms.term import Dim, Term

Extent = Callable[[Dim], int]  # how many places along a dim


def places_read(load: Term, extent: Extent) -> int:
    """Different elements that the load reads over so many places along each of its dims."""
    axes = zip(load.args, load.attrs[0].shape, strict=True)
    return min(prod(map(extent, load.dims)), prod(_places(index, size, extent) for index, size in axes))


def _places(index: Term, size: int | str, extent: Extent) -> int:
    """Different values of an index along an axis."""
    each = prod(map(extent, index.dims))
    if (steps := _steps(index)) is not None:
        each = min(each, 1 + sum(step * (extent(dim) - 1) for dim, step in steps))
    return min(each, size) if isinstance(size, int) else each


@lru_cache(4096)
def _steps(index: Term) -> tuple[tuple[Dim, int], ...] | None:
    """Of an index that is a sum of coordinates: how far apart two neighbours of each are. None for another index."""
    coefficients, _ = affine(index)
    if not all(atom.op in ("iota", "size") for atom in coefficients):
        return None
    return tuple((atom.attrs[0], abs(c)) for atom, c in coefficients.items() if atom.op == "iota")

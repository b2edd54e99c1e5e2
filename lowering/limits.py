"""Guards as conjuncts, conjuncts as limits on a loop's coordinate, and limits as ranges of tiles.

Invariant: an empty tile holds no element that the guard keeps, a full tile none that it drops. build.py makes the
limits; tiled.py calls `tile_range`, and the emitters emit its arithmetic line by line.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from ..egraph.affine import affine, combine, compare, to_term
from ..egraph.ops import const, iota, make
from ..egraph.term import Dim, Term
from .plan import Limit


class TileRange(NamedTuple):
    """Tiles start..stop may hold kept elements; of these, tiles full_start..full_stop hold nothing else."""

    start: int
    full_start: int
    full_stop: int
    stop: int


def conjuncts(guard: Term, negated: bool = False) -> tuple[Term, ...]:
    """Predicates whose conjunction is the guard (or its negation); comparisons of integers become le or eq."""
    if guard.op == "not":
        return conjuncts(guard.args[0], not negated)
    if guard.op == ("or" if negated else "and"):
        return tuple(dict.fromkeys(c for a in guard.args for c in conjuncts(a, negated)))
    if guard.op in ("le", "lt") and all(a.dtype == "int64" for a in guard.args):
        left, right = guard.args
        swapped = "lt" if guard.op == "le" else "le"
        guard = compare(swapped, right, left) if negated else compare(guard.op, left, right)
        return () if guard is const(True) else (guard,)
    return (make("not", (guard,)) if negated else guard,)


def conjunction(parts: Iterable[Term]) -> Term | None:
    """The conjuncts as one predicate; None for none."""
    result = None
    for part in parts:
        result = part if result is None else make("and", (result, part))
    return result


def as_limit(part: Term, loop: Dim, rows: Dim | None, held: Iterable[Dim]) -> tuple[str, Limit] | None:
    """A conjunct le(left, right) as ("upper" | "lower", limit), if the loop's coordinate occurs once, ±j or ±(j // c).

    j + rest <= 0 is j < 1 - rest; rest <= j is j >= rest; with j // c in the place of j, both bounds are c times that.
    """
    if part is const(False):
        return "upper", Limit(const(0), True)
    if part.op != "le":
        return None
    form = combine(affine(part.args[0]), affine(part.args[1]), -1)
    mine = [atom for atom in form[0] if loop in atom.dims]
    width = _block(mine[0], loop) if len(mine) == 1 else None
    if width is None or abs(form[0][mine[0]]) != 1:
        return None
    sign = form[0].pop(mine[0])
    bound = combine(({}, width), form, -width) if sign > 0 else combine(({}, 0), form, width)
    rising = _direction(bound[0], rows)
    if rising is None or any(atom.dims & set(held) for atom in bound[0]):
        return None
    return ("upper" if sign > 0 else "lower"), Limit(to_term(bound), rising >= 0)


def _block(atom: Term, loop: Dim) -> int | None:
    """1 for the coordinate itself, c for coordinate // c, None for anything else."""
    if atom is iota(loop):
        return 1
    if (
        atom.op == "floordiv"
        and atom.args[0] is iota(loop)
        and atom.args[1].op == "const"
        and atom.args[1].attrs[0] > 0
    ):
        return atom.args[1].attrs[0]
    return None


def _direction(coefficients: dict[Term, int], rows: Dim | None) -> int | None:
    """+1, -1 or 0 as the sum rises, falls or stays with the row coordinate; None if that is not known."""
    found = set()
    for atom, c in coefficients.items():
        step = _atom_direction(atom, rows)
        found.add(None if step is None else step * (1 if c > 0 else -1))
    found.discard(0)
    return 0 if not found else found.pop() if len(found) == 1 else None


def _atom_direction(atom: Term, rows: Dim | None) -> int | None:
    if rows not in atom.dims:
        return 0
    if atom is iota(rows):
        return 1
    if atom.op == "floordiv" and atom.args[1].op == "const" and atom.args[1].attrs[0] > 0:
        return _direction(affine(atom.args[0])[0], rows)
    return None


def ends(limit: Limit, first: int, last: int) -> tuple[int, int]:
    """(least, largest) bound over a row tile from the bounds at its first and last row."""
    return (first, last) if limit.rising else (last, first)


def tile_range(
    tile: int, length: int, uppers: Iterable[tuple[int, int]], lowers: Iterable[tuple[int, int]]
) -> TileRange:
    """Which tiles of the loop to run, from the (least, largest) bounds over a tile of rows. It divides no number < 0.

    A short last tile is never counted as full, so that an emitter may leave its mask out of full tiles.
    """
    stop = full_stop = length
    for least, largest in uppers:
        stop, full_stop = min(stop, largest), min(full_stop, least)
    start = full_start = 0
    for least, largest in lowers:
        start, full_start = max(start, least), max(full_start, largest)
    stop = -(-max(stop, 0) // tile)
    start = min(min(start, length) // tile, stop)
    full_start = min(max(-(-min(full_start, length) // tile), start), stop)
    full_stop = min(max(max(full_stop, 0) // tile, full_start), stop)
    return TileRange(start, full_start, full_stop, stop)

"""Guards as ranges of a loop's coordinate, by interval reasoning over any boolean combination, and ranges as tiles.

Invariant: an empty tile holds no element that the guard keeps, and a full tile none that it drops. What is not
understood makes a tile partial. Example: j <= i keeps 0 .. i + 1, so with tiles of 16, row 20 runs tiles 0 and 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import combinations, product
from typing import NamedTuple

from ...egraph.terms.affine import Affine, affine, bounds, combine, compare, length, to_term
from ...egraph.terms.index_simplify import floordiv, simplify_index
from ...egraph.terms.ops import const, iota, make, maximum, minimum, where
from ...egraph.terms.term import Dim, Term
from ...egraph.terms.traversal import rebuild, reduces, subterms, tensors
from ..plan.records import BlockMap, Limit, Range

MAX_CLAUSES = 16  # of a guard in disjunctive form; one with more is not analysed
MAX_RANGES = 4  # of a loop; the last ones of more are joined by their hull
EVERYWHERE = Range((), (), False)


class TileRange(NamedTuple):
    """Tiles start..stop may hold kept elements; of these, tiles full_start..full_stop hold nothing else."""

    start: int
    full_start: int
    full_stop: int
    stop: int


def conjuncts(guard: Term, negated: bool = False) -> tuple[Term, ...]:
    """Predicates whose conjunction is the guard (or its negation); comparisons of integers become le, lt or eq."""
    if guard.op == "not":
        return conjuncts(guard.args[0], not negated)
    if guard.op == ("or" if negated else "and"):
        return tuple(dict.fromkeys(c for a in guard.args for c in conjuncts(a, negated)))
    if guard.op in ("le", "lt") and _of_integers(guard):
        guard = _negated_order(guard) if negated else compare(guard.op, *guard.args)
        return () if guard is const(True) else (guard,)
    return (make("not", (guard,)) if negated else guard,)


def conjunction(parts: Iterable[Term]) -> Term | None:
    """The conjuncts as one predicate; None for none."""
    result = None
    for part in parts:
        result = part if result is None else make("and", (result, part))
    return result


def _of_integers(comparison: Term) -> bool:
    return all(a.dtype == "int64" for a in comparison.args)


def _negated_order(p: Term) -> Term:
    return compare("lt" if p.op == "le" else "le", p.args[1], p.args[0])


# From a guard to clauses: a disjunction of conjunctions of literals


def clauses(guard: Term, loop: Dim, negated: bool = False) -> list[tuple[Term, ...]]:
    """The guard (or its negation) as a disjunction of conjunctions; what has too many stays one opaque literal."""
    found = _clauses(guard, loop, negated)
    return found if len(found) <= MAX_CLAUSES else [(make("not", (guard,)) if negated else guard,)]


def _clauses(p: Term, loop: Dim, negated: bool) -> list[tuple[Term, ...]]:
    if p.op == "not":
        return _clauses(p.args[0], loop, not negated)
    if p.op in ("and", "or"):
        left, right = (clauses(a, loop, negated) for a in p.args)
        return _product(left, right) if (p.op == "or") == negated else [*left, *right]
    if p.op == "where":
        yes, no = (clauses(a, loop, negated) for a in p.args[1:])
        return [*_product(clauses(p.args[0], loop), yes), *_product(clauses(p.args[0], loop, True), no)]
    if p.op in ("le", "lt") and _of_integers(p):
        return _order(_negated_order(p) if negated else compare(p.op, *p.args), loop)
    if p.op == "eq" and _of_integers(p):
        return _equal(p, loop, negated)
    if p.op == "const":
        return [()] if bool(p.attrs[0]) != negated else []
    return [(make("not", (p,)) if negated else p,)]


def _product(left: list[tuple[Term, ...]], right: list[tuple[Term, ...]]) -> list[tuple[Term, ...]]:
    return [tuple(dict.fromkeys((*a, *b))) for a in left for b in right]


def _equal(p: Term, loop: Dim, negated: bool) -> list[tuple[Term, ...]]:
    """a = b as a ≤ b ∧ b ≤ a where that limits the loop, a ≠ b as a < b ∨ b < a."""
    if loop in p.dims and _solve(_difference(p), loop) is None:
        return [(make("not", (p,)) if negated else p,)]
    one, other = (_order(compare("lt" if negated else "le", *args), loop) for args in (p.args, p.args[::-1]))
    return [*one, *other] if negated else _product(one, other)


def _order(p: Term, loop: Dim) -> list[tuple[Term, ...]]:
    """A comparison with an absolute value, a maximum or a minimum of the loop's coordinate, taken apart."""
    if p.op == "const":
        return [()] if p.attrs[0] else []
    form = _difference(p)
    for atom, c in form[0].items():
        if atom.op in ("abs", "maximum", "minimum") and loop in atom.dims:
            parts = atom.args if len(atom.args) == 2 else (atom.args[0], make("neg", atom.args))
            rest = combine(form, ({atom: 1}, 0), -c)
            one, other = (_order(_at_most_zero(combine(rest, affine(x), c)), loop) for x in parts)
            both = (atom.op == "minimum") != (c > 0)
            return _product(one, other) if both else [*one, *other]
    return [(p,)]


def _difference(p: Term) -> Affine:
    """The form that is at most 0 where the comparison holds, or 0 where it is one for equality."""
    form = combine(affine(p.args[0]), affine(p.args[1]), -1)
    return (form[0], form[1] + 1) if p.op == "lt" else form


def _at_most_zero(form: Affine) -> Term:
    return compare("le", to_term(form), const(0))


# From a literal to a limit


class LimitOfLiteral(NamedTuple):
    """A bound on the loop's coordinate; `exact` if the literal says no more than that."""

    side: str
    bound: Affine
    exact: bool


def _solve(form: Affine, loop: Dim, exact: bool = True) -> LimitOfLiteral | None:
    """form ≤ 0 solved for the loop's coordinate j, which occurs in it once as c · j or inside a floor division.

    c · j + r ≤ 0 is j < -r // c + 1; r ≤ c · j is j >= (r + c - 1) // c; and x // n ≤ m is x ≤ n · m + n - 1,
    m ≤ x // n is n · m ≤ x. Other atoms with j in them are replaced by the end of their interval that allows most.
    """
    mine = sorted((a for a in form[0] if loop in a.dims), key=lambda a: a.op not in ("iota", "floordiv"))
    if not mine:
        return None
    for atom in mine[1:]:
        c = form[0][atom]
        end = bounds(atom)[0 if c > 0 else 1]
        if end is None:
            return None
        form, exact = combine(combine(form, ({atom: 1}, 0), -c), ({}, end), c), False
    atom, c = mine[0], form[0][mine[0]]
    rest = combine(form, ({atom: 1}, 0), -c)
    most = _quotient(combine(({}, 0), rest, -1), c) if c > 0 else _quotient(combine(rest, ({}, -c - 1), 1), -c)
    if atom is iota(loop):
        if c > 0:
            return LimitOfLiteral("upper", combine(most, ({}, 1), 1), exact)
        return LimitOfLiteral("lower", most, exact)
    width = _positive(atom.args[1]) if atom.op == "floordiv" else None
    if width is None:
        return None
    inner = affine(atom.args[0])
    if c > 0:
        return _solve(combine(combine(inner, most, -width), ({}, width - 1), -1), loop, exact)
    return _solve(combine(combine(({}, 0), most, width), inner, -1), loop, exact)


def _quotient(form: Affine, divisor: int) -> Affine:
    return form if divisor == 1 else affine(floordiv(to_term(form), const(divisor)))


def _positive(x: Term) -> int | None:
    return x.attrs[0] if x.op == "const" and x.attrs[0] > 0 else None


def as_limit(part: Term, loop: Dim, rows: Dim | None, held: Iterable[Dim]) -> tuple[str, Limit, bool] | None:
    """A literal as ("upper" | "lower", limit, exact); None if it does not limit the loop's coordinate.

    A literal without the loop's dim is an upper limit: the whole length where it holds, nothing where it does not.
    """
    if part.dims & set(held):
        return None
    if loop not in part.dims:
        solved, bound = LimitOfLiteral("upper", ({}, 0), True), where(part, length(loop), const(0))
    else:
        solved = _solve(_difference(part), loop) if part.op in ("le", "lt") else None
        bound = to_term(solved.bound) if solved is not None else None
    if solved is None or loop in bound.dims:
        return None
    exact, rising = solved.exact, _direction(bound, rows)
    if rising is None:
        exact, bound = False, _widened(bound, rows, solved.side)
        if (rising := _direction(bound, rows)) is None:
            return None
    return solved.side, Limit(_within(bound, length(loop)), rising >= 0), exact


def end_of_rows(limit: Limit, rows: Dim, loop: Dim) -> Term | None:
    """The row from which on an upper limit keeps nothing, where it is a condition on rows; None where it is none.

    Example: where(i + 1 ≤ own[b], 4096, 0) of rows i keeps keys of the rows before own[b].
    """
    bound = without_clamps(limit.bound, loop)
    if bound.op != "where" or bound.args[2] is not const(0) or rows not in bound.args[0].dims - bound.args[1].dims:
        return None
    found = as_limit(bound.args[0], rows, None, ())
    return found[1].bound if found is not None and found[0] == "upper" and found[2] else None


def why_apart(uppers: Iterable[Limit], lowers: Iterable[Limit], rows: Dim | None, loop: Dim) -> str | None:
    """Why places within the limits of a block of rows may be within those of no row; None where they never are.

    The block's limits are the loosest of its rows'. Example: of rows i from n on with windows of w keys before them,
    the block's begin is that of its first row, which may keep nothing there.
    """
    above, below = _moving(uppers, rows), _moving(lowers, rows)
    nodes = (n for limit in (*above, *below) for n in subterms(limit.bound) if rows in n.dims)
    if any(n.op in ("mul", "floordiv", "mod") for n in nodes):
        return "ranges of neighbouring rows may lie apart"
    if any(a.rising != b.rising for limits in (above, below) for a, b in combinations(limits, 2)):
        return "one limit rises with the rows and another one falls"
    if any(a.rising == b.rising and not _is_below(b, a, loop) for a, b in product(above, below)):
        return "limits that move together may leave rows nothing"
    return None


def _moving(limits: Iterable[Limit], rows: Dim | None) -> list[Limit]:
    return [limit for limit in limits if rows in limit.bound.dims]


def _is_below(lower: Limit, upper: Limit, loop: Dim) -> bool:
    """Whether one limit is known to be below the other one for each row."""
    least, _ = bounds(without_clamps(upper.bound, loop) - without_clamps(lower.bound, loop))
    return least is not None and least > 0


def _widened(bound: Term, rows: Dim, side: str) -> Term:
    """The bound with each part that both rises and falls along the rows at its extreme.

    Example: for rows i, i % 4 becomes 3 in an upper limit and 0 in a lower one.
    """
    coefficients, rest = affine(bound)
    kept: dict[Term, int] = {}
    for atom, c in coefficients.items():
        low, high = bounds(atom)
        if _atom_direction(atom, rows) is None and low is not None and high is not None:
            rest += c * (high if (c > 0) == (side == "upper") else low)
        else:
            kept[atom] = c
    return to_term((kept, rest))


def _within(bound: Term, size: Term) -> Term:
    """The bound, clamped to 0 .. size if it reads data: then nothing added to it overflows, and 32 bits hold it."""
    if not any(n.op == "load" for n in subterms(bound)):
        return bound
    form, k = affine(bound)
    return maximum(minimum(to_term((form, 0)), simplify_index(size - const(k))), const(-k)) + const(k)


def without_clamps(bound: Term, loop: Dim) -> Term:
    """The bound for a reader: without the clamps that keep what data holds within the dim."""

    def change(node: Term, args: tuple[Term, ...]) -> Term:
        made = node if args == node.args else make(node.op, args, node.attrs)
        if made.op == "maximum" and made.args[0].op == "minimum" and made.args[1].op == "const":
            data, most = made.args[0].args
            if simplify_index(most - made.args[1]) is length(loop):
                return data
        return made

    return simplify_index(rebuild(bound, change))


def _direction(x: Term, rows: Dim | None) -> int | None:
    """+1, -1 or 0 as the integer rises, falls or stays with the row coordinate; None if that is not known."""
    if rows not in x.dims:
        return 0
    coefficients = affine(x)[0]
    steps = [(_atom_direction(atom, rows), c) for atom, c in coefficients.items()]
    return _joined(None if step is None else step * (1 if c > 0 else -1) for step, c in steps)


def _joined(steps: Iterable[int | None]) -> int | None:
    found = set(steps) - {0}
    return 0 if not found else found.pop() if len(found) == 1 else None


def _atom_direction(atom: Term, rows: Dim | None) -> int | None:
    if rows not in atom.dims:
        return 0
    if atom is iota(rows):
        return 1
    if atom.op == "floordiv" and _positive(atom.args[1]):
        return _direction(atom.args[0], rows)
    if atom.op in ("maximum", "minimum"):
        return _joined(_direction(a, rows) for a in atom.args)
    if atom.op == "where" and atom.args[0].op in ("le", "lt") and not any(rows in a.dims for a in atom.args[1:]):
        return _choice_direction(atom, rows)
    return None


def _choice_direction(choice: Term, rows: Dim | None) -> int | None:
    """The direction of where(a <= b, yes, no), whose yes and no stay with the rows: it falls as a - b rises, if yes is
    the larger one."""
    condition, yes, no = choice.args
    low, high = bounds(yes - no)
    step = _direction(to_term(_difference(condition)), rows) if _of_integers(condition) else None
    if step is None:
        return None
    if low is not None and low >= 0:
        return -step
    return step if high == 0 else None


# From clauses to ranges


def ranges(guard: Term | None, loop: Dim, rows: Dim | None, held: Iterable[Dim] = ()) -> tuple[Range, ...]:
    """Ranges whose union holds every coordinate that the guard keeps; in an exact one it keeps all."""
    held = frozenset(held)
    found = [_range_of(clause, loop, rows, held) for clause in (clauses(guard, loop) if guard is not None else [()])]
    found = _with_unions(_without_absorbed(found), rows)
    while len(found) > MAX_RANGES:
        found = _without_absorbed([*found[:-2], _hull(found[-2], found[-1], rows)])
    return tuple(found)


def _range_of(clause: Iterable[Term], loop: Dim, rows: Dim | None, held: Iterable[Dim]) -> Range:
    """The range of a conjunction of literals; it is exact if each literal is an exact limit."""
    limits = [as_limit(part, loop, rows, held) for part in clause]
    known = [limit for limit in limits if limit is not None]
    uppers, lowers = (tuple(dict.fromkeys(limit for s, limit, _ in known if s == side)) for side in ("upper", "lower"))
    return Range(uppers, lowers, len(known) == len(limits) and all(exact for *_, exact in known))


def _with_unions(found: list[Range], rows: Dim | None) -> list[Range]:
    """The ranges with each two of them whose union is one range as this one."""
    for a, b in combinations(found, 2):
        if (union := _union(a, b, rows)) is not None:
            return _with_unions(_without_absorbed([union, *(r for r in found if r not in (a, b))]), rows)
    return found


def _without_absorbed(found: list[Range]) -> list[Range]:
    """The ranges without those that lie inside another one and are not exact where that one is not."""
    kept: list[Range] = []
    for r in sorted(dict.fromkeys(found), key=lambda r: (len(r.uppers) + len(r.lowers), not r.exact)):
        if not any(_inside(r, other) and (other.exact or not r.exact) for other in kept):
            kept.append(r)
    return kept


def _inside(one: Range, other: Range) -> bool:
    return set(other.uppers) <= set(one.uppers) and set(other.lowers) <= set(one.lowers)


def _union(a: Range, b: Range, rows: Dim | None) -> Range | None:
    """The union of two ranges that share their other end, where it is one range."""
    if a.exact != b.exact:
        return None
    if set(a.lowers) == set(b.lowers) and a.uppers and b.uppers:
        upper = _outermost(a.uppers, b.uppers, rows, minimum, maximum)
        return Range((upper,), a.lowers, a.exact) if upper is not None else None
    if set(a.uppers) == set(b.uppers) and a.lowers and b.lowers:
        lower = _outermost(a.lowers, b.lowers, rows, maximum, minimum)
        return Range(a.uppers, (lower,), a.exact) if lower is not None else None
    return None


def _hull(a: Range, b: Range, rows: Dim | None) -> Range:
    upper = _outermost(a.uppers, b.uppers, rows, minimum, maximum) if a.uppers and b.uppers else None
    lower = _outermost(a.lowers, b.lowers, rows, maximum, minimum) if a.lowers and b.lowers else None
    return Range((upper,) if upper else (), (lower,) if lower else (), False)


Pick = Callable[[Term, Term], Term]  # minimum or maximum


def _outermost(
    one: tuple[Limit, ...], other: tuple[Limit, ...], rows: Dim | None, within: Pick, across: Pick
) -> Limit | None:
    """The looser of two ends, each the tightest of several limits; None if it moves with the rows both ways."""
    bound = across(*(_folded(within, [limit.bound for limit in side]) for side in (one, other)))
    rising = _direction(bound, rows)
    return None if rising is None else Limit(bound, rising >= 0)


def _folded(operation: Pick, parts: list[Term]) -> Term:
    result = parts[0]
    for part in parts[1:]:
        result = operation(result, part)
    return result


def block_map(
    guard: Term | None, loop: Dim, rows: Dim | None, grid: Iterable[Dim], made: Iterable[str], finite_mask: bool
) -> BlockMap | None:
    """The record of a map for a guard that reads tensors by the loop's or the rows' coordinate; None for another guard.

    made: names of tensors that exist only between kernels. finite_mask: whether the guard is a finite mask.
    """
    if guard is None or reduces(guard) or {t.name for t in tensors(guard)} & set(made):
        return None
    dims = tuple(d for d in grid if d in guard.dims)
    moving = [n for n in subterms(guard) if n.op == "load" and n.dims & {loop, rows}]
    if not moving or guard.dims - {*dims, loop, rows}:
        return None
    return BlockMap(guard, loop, dims, (rows,) if rows in guard.dims else (), finite_mask)


# From ranges to tiles


def ends(limit: Limit, first: int, last: int) -> tuple[int, int]:
    """(least, largest) bound over a row tile from the bounds at its first and last row."""
    return (first, last) if limit.rising else (last, first)


def tile_range(
    tile: int, length: int, uppers: Iterable[tuple[int, int]], lowers: Iterable[tuple[int, int]]
) -> TileRange:
    """Which tiles of the loop to run, from the (least, largest) bounds over a tile of rows.

    It divides no negative number, as languages round such quotients differently. A short last tile is never counted as
    full, so that a full tile needs no mask.
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


def tile_classes(found: Iterable[tuple[TileRange, bool]]) -> dict[int, bool]:
    """The tiles to run, in order, of the union of ranges (each with whether it is exact), and whether each is full."""
    classes: dict[int, bool] = {}
    for tiles, exact in found:
        for n in range(tiles.start, tiles.stop):
            full = exact and tiles.full_start <= n < tiles.full_stop
            classes[n] = classes.get(n, False) or full
    return dict(sorted(classes.items()))

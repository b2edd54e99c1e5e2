"""Parts of a body that depend on rows and columns by their difference alone, and tables that are read by it.

Such a part is computed once for each difference. Example: the bias table[j - i] of T5, for queries i and keys j.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod

from ...egraph.terms.affine import affine, bounds, length
from ...egraph.terms.index_simplify import simplify_index
from ...egraph.terms.ops import const, iota, make, maximum, minimum
from ...egraph.terms.term import FLOATS, Dim, Term
from ...egraph.terms.traversal import all_dims, substitute, subterms

SCORES = 2**18  # rows times columns from which a kernel of its own is thought of
SAVED = 2**25  # units of work saved in all, twice what a launch takes, from which it is done
LEAST = 2  # units a score: reading a value costs about one
# Units of work, one being an exponential in base 2 or a load; conversions count where a sum cannot be taken apart.
WORK = {"exp": 1, "exp2": 1, "log": 1, "log2": 1, "rsqrt": 1, "log1p": 2, "sqrt": 2, "tanh": 2, "sigmoid": 2, "div": 2}
WORK |= {"sin": 2, "cos": 2, "pow": 3, "erf": 4, "load": 2, "cast": 1}


@dataclass(frozen=True)
class Difference:
    """`part` is `values` at `places`: where each of these dims, which only the values have, is an index."""

    part: Term
    values: Term
    places: tuple[tuple[Dim, Term], ...]


def of_difference(bodies: Iterable[Term], rows: Dim | None, loop: Dim, grid: Iterable[Dim]) -> Difference | None:
    """The next part of the bodies of a loop that pays as a kernel of its own; None if there is none."""
    if rows is None or not all(isinstance(d.size, int) for d in (rows, loop)) or rows.size * loop.size < SCORES:
        return None
    points = prod(d.size for d in grid if isinstance(d.size, int))
    for body in bodies:
        for part in _largest(body, rows, loop, frozenset(grid) | {rows, loop}):
            work = _work(part, rows, loop)
            if work >= LEAST and work * points * rows.size * loop.size >= SAVED:
                return _moved(part, rows, loop)
    return None


def _largest(body: Term, rows: Dim, loop: Dim, known: frozenset[Dim]) -> Iterator[Term]:
    """The largest floating subterms over rows and loop that their difference determines; none in conditions."""
    stack, seen = [body], {body}
    while stack:
        node = stack.pop()
        if node.dtype in FLOATS and {rows, loop} <= node.dims <= known and by_difference(node, rows, loop):
            yield node
        elif node.op != "reduce" and node.dtype != "bool":
            fresh = [a for a in node.args if {rows, loop} <= a.dims and a not in seen]
            seen.update(fresh)
            stack.extend(fresh)


@lru_cache(4096)
def by_difference(node: Term, rows: Dim, loop: Dim) -> bool:
    """Whether both coordinates occur in sums alone in which their factors cancel."""
    waiting, seen = [node], {node}
    for inner in waiting:
        if inner.op in ("reduce", "iota"):
            return False
        parts: Iterable[Term] = inner.args
        if inner.dtype == "int64":
            coefficients, _ = affine(inner)
            if coefficients.pop(iota(rows), 0) != -coefficients.pop(iota(loop), 0):
                return False
            parts = inner.args if inner in coefficients else coefficients
        fresh = [a for a in dict.fromkeys(parts) if a.dims & {rows, loop} and a not in seen]
        seen.update(fresh)
        waiting += fresh
    return True


def _work(part: Term, rows: Dim, loop: Dim) -> int:
    """Units for each score: what depends on one of the coordinates or on none is no work of the loop."""
    return sum(WORK.get(n.op, 0) for n in subterms(part) if {rows, loop} <= n.dims and not _cheap(n, {rows, loop}))


def _cheap(node: Term, dims: set[Dim]) -> bool:
    """A cast of a float or of a sum of coordinates, or a load at such sums: a diagonal already."""
    if node.op == "cast":
        return node.args[0].dtype != "int64" or _sums((node.args[0],), dims)
    return node.op == "load" and _sums(node.args, dims)


def _sums(indices: Iterable[Term], dims: set[Dim]) -> bool:
    return all(atom.op == "iota" for index in indices for atom in affine(index)[0] if atom.dims & dims)


def _moved(part: Term, rows: Dim, loop: Dim) -> Difference:
    """The part for rows = 0 and loop = dim - offset: every value of the difference once."""
    dim, (values,) = along_differences([part], rows, loop)
    index = iota(loop) - iota(rows) + const(rows.size - 1)
    return Difference(part, _within(values, dim), ((dim, index),))


def along_differences(
    parts: Sequence[Term], rows: Dim, loop: Dim, beside: Sequence[Term] = ()
) -> tuple[Dim, tuple[Term, ...]]:
    """A dim whose place is loop - rows + the number of rows - 1, and the parts over it instead of rows and loop.

    beside: terms whose dims have other names.
    """
    known = isinstance(rows.size, int) and isinstance(loop.size, int)
    name = fresh(f"{loop.name}_{rows.name}", {d.name for part in (*parts, *beside) for d in all_dims(part)})
    dim = Dim(name, rows.size + loop.size - 1 if known else f"{rows.size} + {loop.size}")
    change = {iota(rows): const(0), iota(loop): iota(dim) + 1 - length(rows)}
    return dim, tuple(simplify_index(substitute(part, change)) for part in parts)


def fresh(name: str, names: Collection[str]) -> str:
    """The name, or one like it that is not among the names."""
    return next(n for k in range(len(names) + 1) if (n := name + "_" * k) not in names)


def _within(values: Term, dim: Dim) -> Term:
    """The values with indices inside of their tensors: in the loop, a guard may have kept others from being read."""
    mapping = {n: _clamped(n) for n in subterms(values) if n.op == "load" and dim in n.dims}
    return substitute(values, mapping)


def _clamped(node: Term) -> Term:
    sizes = [s if isinstance(s, int) else make("size", (), (s,)) for s in node.attrs[0].shape]
    return make("load", tuple(between(a, s) for a, s in zip(node.args, sizes, strict=True)), node.attrs)


def between(index: Term, size: int | Term) -> Term:
    """The index, or the nearest place in 0 .. size - 1."""
    low, high = bounds(index)
    if isinstance(size, int) and low is not None and low >= 0 and high is not None and high < size:
        return index
    return maximum(minimum(index, size - 1), 0)


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

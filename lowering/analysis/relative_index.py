"""Terms that depend on rows and columns by their difference alone: the relative index, column − row.

Such a term has rows + columns − 1 values for rows · columns pairs, so a vector of them serves a whole tile, read as the
diagonals of a matrix. Example: the bias table[j − i] of T5, for queries i and keys j.
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

MIN_SCORES = 2**18  # rows times columns, from which a kernel of its own may pay
MIN_SAVED_WORK = 2**25  # units of work saved in all, twice what a launch takes, from which it pays
MIN_WORK_PER_SCORE = 2  # units: reading a value costs about one
# Units of work, one being an exponential in base 2 or a load; conversions count where a sum cannot be taken apart.
WORK = {"exp": 1, "exp2": 1, "log": 1, "log2": 1, "rsqrt": 1, "log1p": 2, "sqrt": 2, "tanh": 2, "sigmoid": 2, "div": 2}
WORK |= {"sin": 2, "cos": 2, "pow": 3, "erf": 4, "load": 2, "cast": 1}


@dataclass(frozen=True)
class Table:
    """A part of a term, and the values that a table of it holds: `part` is `values` with each dim of `places` at its
    index. Only the values have these dims.
    """

    part: Term
    values: Term
    places: tuple[tuple[Dim, Term], ...]


def relative_table(bodies: Iterable[Term], rows: Dim | None, loop: Dim, grid: Iterable[Dim]) -> Table | None:
    """The table of the next costly part of a loop's bodies that depends on the relative index alone.

    None if there is no part for which a kernel of its own pays.
    """
    if rows is None or not isinstance(rows.size, int) or not isinstance(loop.size, int):
        return None
    scores = rows.size * loop.size
    if scores < MIN_SCORES:
        return None
    points = prod(d.size for d in grid if isinstance(d.size, int))
    for body in bodies:
        for part in _largest(body, rows, loop, frozenset(grid) | {rows, loop}):
            work = _work(part, rows, loop)
            if work >= MIN_WORK_PER_SCORE and work * points * scores >= MIN_SAVED_WORK:
                return _table_of(part, rows, loop)
    return None


def _largest(body: Term, rows: Dim, loop: Dim, known: frozenset[Dim]) -> Iterator[Term]:
    """The largest floating subterms over rows and columns that depend on their difference alone; none in conditions."""
    stack, seen = [body], {body}
    while stack:
        node = stack.pop()
        if node.dtype in FLOATS and {rows, loop} <= node.dims <= known and is_relative(node, rows, loop):
            yield node
        elif node.op != "reduce" and node.dtype != "bool":
            fresh = [a for a in node.args if {rows, loop} <= a.dims and a not in seen]
            seen.update(fresh)
            stack.extend(fresh)


@lru_cache(4096)
def is_relative(node: Term, rows: Dim, loop: Dim) -> bool:
    """Whether the node depends on both coordinates only by sums in which they cancel, as j − i or 2 · (i − j).

    i ≤ j + 7 is such a sum, too: it compares i − j with a number.
    """
    waiting, seen = [node], {node}
    for inner in waiting:
        if inner.op in ("reduce", "iota"):
            return False
        parts: Iterable[Term] = inner.args
        sum_ = _sum_of_integers(inner)
        if sum_ is not None:
            coefficients, _ = affine(sum_)
            if coefficients.pop(iota(rows), 0) != -coefficients.pop(iota(loop), 0):
                return False
            parts = inner.args if inner in coefficients else coefficients
        fresh = [a for a in dict.fromkeys(parts) if a.dims & {rows, loop} and a not in seen]
        seen.update(fresh)
        waiting += fresh
    return True


def _sum_of_integers(node: Term) -> Term | None:
    """An integer node itself; of a comparison of integers, the difference of its sides; None for another node."""
    if node.op in ("lt", "le", "eq") and all(a.dtype == "int64" for a in node.args):
        return node.args[0] - node.args[1]
    return node if node.dtype == "int64" else None


def _work(part: Term, rows: Dim, loop: Dim) -> int:
    """Units of work for each score. What depends on one coordinate, or on none, is no work of the loop."""
    return sum(WORK.get(n.op, 0) for n in subterms(part) if {rows, loop} <= n.dims and not _cheap(n, {rows, loop}))


def _cheap(node: Term, dims: set[Dim]) -> bool:
    """Whether the node costs little: a cast of a float or of a sum of coordinates, or a load at sums of coordinates.

    Such a load reads a diagonal already.
    """
    if node.op == "cast":
        return node.args[0].dtype != "int64" or _sums((node.args[0],), dims)
    return node.op == "load" and _sums(node.args, dims)


def _sums(indices: Iterable[Term], dims: set[Dim]) -> bool:
    return all(atom.op == "iota" for index in indices for atom in affine(index)[0] if atom.dims & dims)


def _table_of(part: Term, rows: Dim, loop: Dim) -> Table:
    """The part at row 0 and at each column j + 1 − rows for j of the new dim: each relative index once."""
    dim, (values,) = over_relative_index([part], rows, loop)
    index = iota(loop) - iota(rows) + const(int(rows.size) - 1)
    return Table(part, _clamped(values, dim), ((dim, index),))


def over_relative_index(
    parts: Sequence[Term], rows: Dim, loop: Dim, beside: Sequence[Term] = ()
) -> tuple[Dim, tuple[Term, ...]]:
    """The dim of the relative index, and the parts over it instead of over rows and columns.

    The index along it is column − row + rows − 1, from 0 on. beside: terms whose dims must have other names.
    """
    size: int | str = f"{rows.size} + {loop.size}"  # one more than needed
    if isinstance(rows.size, int) and isinstance(loop.size, int):
        size = rows.size + loop.size - 1
    name = fresh(f"{loop.name}_{rows.name}", {d.name for part in (*parts, *beside) for d in all_dims(part)})
    dim = Dim(name, size)
    change = {iota(rows): const(0), iota(loop): iota(dim) + 1 - length(rows)}
    return dim, tuple(simplify_index(substitute(part, change)) for part in parts)


def fresh(name: str, names: Collection[str]) -> str:
    """The name, with underscores behind it if it is among the names."""
    return next(n for k in range(len(names) + 1) if (n := name + "_" * k) not in names)


def _clamped(values: Term, dim: Dim) -> Term:
    """The values with indices inside of their tensors: in the loop, a guard may have kept others from being read."""
    mapping = {n: _clamped_load(n) for n in subterms(values) if n.op == "load" and dim in n.dims}
    return substitute(values, mapping)


def _clamped_load(node: Term) -> Term:
    sizes = [s if isinstance(s, int) else make("size", (), (s,)) for s in node.attrs[0].shape]
    return make("load", tuple(between(a, s) for a, s in zip(node.args, sizes, strict=True)), node.attrs)


def between(index: Term, size: int | Term) -> Term:
    """The index, or the nearest one in 0 .. size − 1."""
    low, high = bounds(index)
    if isinstance(size, int) and low is not None and low >= 0 and high is not None and high < size:
        return index
    return maximum(minimum(index, size - 1), 0)


# Products over a relative index


@dataclass(frozen=True)
class RelativeProduct:
    """The factors of a sum in two groups. `values`: over `dim`, the relative index, instead of over rows and columns.

    The index along `dim` is column − row + rows − 1. `others`: the other factors, unchanged.
    """

    dim: Dim
    values: tuple[Term, ...]
    others: tuple[Term, ...]


def relative_values(
    parts: Sequence[Term], rows: Dim | None, loop: Dim, beside: Iterable[Dim] = ()
) -> RelativeProduct | None:
    """The factors of a sum over the loop's dim as a product over the relative index; None if it is none.

    Σ_j w[i, j] · t[j − i, e] = Σ_δ w[i, i + δ] · t[δ, e]: with a tile of w skewed, so that column δ of row i holds
    w[i, i + δ], every row meets the same matrix t. beside: dims of a weight that is one factor more.
    """
    chosen = relative_factors(parts, rows, loop, beside)
    return _relative_product(parts, chosen, rows, loop) if chosen else None


def relative_scores(parts: Sequence[Term], rows: Dim | None, loop: Dim, summed: Dim) -> RelativeProduct | None:
    """The factors of a sum over another dim than rows and columns as a product over the relative index; None if none.

    Σ_d q[i, d] · t[j − i, d] is the product of q and t over d, a matrix over i and the relative index; skewed back, its
    row i holds the scores of the columns j.
    """
    if rows is None or summed in (rows, loop):
        return None
    chosen = [part for part in parts if {rows, loop} <= part.dims and is_relative(part, rows, loop)]
    others = frozenset().union(*(part.dims for part in parts if part not in chosen))
    if len(others & {rows, loop}) != 1 or summed not in others or not any(summed in part.dims for part in chosen):
        return None
    return _relative_product(parts, chosen, rows, loop)


def relative_factors(parts: Sequence[Term], rows: Dim | None, loop: Dim, beside: Iterable[Dim] = ()) -> list[Term]:
    """The factors that depend on the relative index alone, if they have a dim that no other factor has; else none."""
    if rows is None:
        return []
    both = [part for part in parts if {rows, loop} <= part.dims]
    chosen = [part for part in both if part.dims > {rows, loop} and is_relative(part, rows, loop)]
    others = frozenset(beside).union(*(part.dims for part in parts if part not in chosen))
    own = frozenset().union(*(part.dims for part in chosen)) - others
    return chosen if own and rows in others else []


def _relative_product(parts: Sequence[Term], chosen: Sequence[Term], rows: Dim, loop: Dim) -> RelativeProduct:
    others = tuple(part for part in parts if part not in chosen)
    return RelativeProduct(*over_relative_index(chosen, rows, loop, others), others)

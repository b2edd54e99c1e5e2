"""The transpose of a load: the gradient of a tensor by element, from the cotangents of the places that read it.

`load(T, index)` reads one element at each place. Its transpose sums, for each element, the cotangents of all places
that read it. The sum is rounded to the tensor's dtype once, not its addends. Example: `k[h // 2, j]` is read by two
heads, so the gradient of k sums over the two.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import count

from ..terms.affine import affine, bounds, length, to_term
from ..terms.index_simplify import simplify_index
from ..terms.ops import cast, const, eq, iota, le, lt, make, maximum, minimum, sum_over, where
from ..terms.term import FLOATS, Dim, Term
from ..terms.traversal import all_dims, at_place, rebuild, reduces, rename_dims
from .partials import ZERO


def transposed(node: Term, g: Term) -> tuple[Term, tuple[Dim, ...]]:
    """The gradient of the tensor of one load, and the dim of each of the tensor's axes.

    An index that is a dim of the axis's size names the axis: gradients then share loops. Where an index says at which
    place of a dim the element is read, the cotangent is taken there; otherwise `where(index = place, g, 0)` is summed.
    """
    tensor, left, dtype = node.attrs[0], set(node.dims), g.dtype
    g = _before_rounding(g)
    axes: list[Dim] = []
    computed: list[tuple[Dim, Term]] = []
    for number, (size, index) in enumerate(zip(tensor.shape, node.args, strict=True)):
        if index.op == "iota" and index.attrs[0] in left and index.attrs[0].size == size:
            axes.append(index.attrs[0])
            left.discard(index.attrs[0])
            continue
        axes.append(_axis(tensor.name, number, size, index, axes))
        if not (index.op == "const" and size == 1):
            computed.append((axes[-1], index))
    while computed:
        axis, index = computed.pop(0)
        found = _one_place(index, axis, left) or _group(index, axis, left) or _flattened(index, axis, left)
        if found is None:
            g = where(eq(index, iota(axis)), g, ZERO)
            continue
        for dim, place in found.places.items():
            g = at_place(g, dim, place)
            computed = [(other, simplify_index(at_place(i, dim, place))) for other, i in computed]
        g = g if found.inside is None else where(found.inside, g, ZERO)
        left = left.difference(found.places) | found.fresh
    g = summed(g, left)
    return (g if g.dtype == dtype else cast(g, dtype)), tuple(axes)


def _before_rounding(g: Term) -> Term:
    """The cotangent without the casts that it ends with, as of a tensor in half precision, also inside of a mask."""
    while g.op == "cast" and g.args[0].dtype in FLOATS:
        g = g.args[0]
    if g.op == "where" and g.args[2] is ZERO:
        return where(g.args[0], _before_rounding(g.args[1]), ZERO)
    return g


def _axis(tensor: str, number: int, size: int | str, index: Term, others: Collection[Dim]) -> Dim:
    """A dim for an axis. Of two tensors that a group of heads reads, the axes have one dim: they share loops."""
    dims = sorted(index.dims)
    name = f"{dims[0]}.group" if index.op == "floordiv" and dims else f"one.{number}" if size == 1 else ""
    return Dim(f"{tensor}.{number}" if not name or name in {d.name for d in others} else name, size)


@dataclass(frozen=True)
class SolvedIndex:
    """The places of dims at which an element is read. inside: whether there are any. fresh: dims of them to sum."""

    places: Mapping[Dim, Term]
    inside: Term | None = None
    fresh: frozenset[Dim] = frozenset()


def _one_place(index: Term, axis: Dim, left: Collection[Dim]) -> SolvedIndex | None:
    """Of an index d + c or c - d: the one place of d that reads an element, as a slice or a shift does."""
    atoms, constant = affine(index)
    if len(atoms) != 1:
        return None
    ((atom, sign),) = atoms.items()
    if atom.op != "iota" or abs(sign) != 1 or atom.attrs[0] not in left:
        return None
    dim = atom.attrs[0]
    place = to_term(({iota(axis): sign}, -sign * constant))
    low, high = bounds(place)
    kept: list[Term] = []
    if low is None or low < 0:
        kept.append(le(const(0), place))
    if high is None or not isinstance(dim.size, int) or high >= dim.size:
        kept.append(lt(place, length(dim)))
    inside = reduce(lambda p, q: p & q, kept) if kept else None
    return SolvedIndex({dim: _clamped(place, low, dim, len(kept))}, inside)


def _clamped(place: Term, low: int | None, dim: Dim, conditions: int) -> Term:
    """The place, kept inside of the dim: what is read beside it is not used, and must be memory that exists."""
    if low is None or low < 0:
        place = maximum(place, const(0))
        conditions -= 1
    return minimum(place, length(dim) - const(1)) if conditions else place


def _group(index: Term, axis: Dim, left: Collection[Dim]) -> SolvedIndex | None:
    """Of an index h // n that covers the axis exactly: the n members of each group, which are summed."""
    if index.op != "floordiv" or index.args[0].op != "iota" or index.args[1].op != "const":
        return None
    dim, n = index.args[0].attrs[0], index.args[1].attrs[0]
    if dim not in left or not isinstance(axis.size, int) or dim.size != n * axis.size:
        return None
    member = Dim(f"{dim.name}.member", n)
    return SolvedIndex({dim: iota(axis) * n + iota(member)}, fresh=frozenset({member}))


def _flattened(index: Term, axis: Dim, left: Collection[Dim]) -> SolvedIndex | None:
    """Of an index h · n + d + c, where d has n places: the one place of each dim, as of axes that are flattened."""
    atoms, constant = affine(index)
    ordered = sorted(atoms.items(), key=lambda pair: pair[1])
    step = 1
    for atom, factor in ordered:
        size = atom.attrs[0].size if atom.op == "iota" and atom.attrs[0] in left else None
        if factor != step or not isinstance(size, int):
            return None
        step *= size
    if len(ordered) < 2:
        return None
    place = iota(axis) - const(constant) if constant else iota(axis)
    low, high = bounds(place)
    kept = [] if low is not None and low >= 0 else [le(const(0), place)]
    if high is None or high >= step:
        kept.append(lt(place, const(step)))
    within = place if not kept else minimum(maximum(place, const(0)), const(step - 1))
    places = {atom.attrs[0]: (within // factor) % atom.attrs[0].size for atom, factor in ordered}
    return SolvedIndex(places, reduce(lambda p, q: p & q, kept) if kept else None)


def summed(x: Term, dims: Collection[Dim]) -> Term:
    """The sum over dims, whether or not the term depends on them."""
    for dim in sorted(dims):
        x = sum_over(dim, x)
    return x


def with_axes(own: Sequence[Dim], term: Term, axes: Sequence[Dim]) -> Term:
    """The same gradient with other dims for its axes; dims that are bound inside make way."""
    taken = {*own, *axes}
    names = {r.attrs[1]: _fresh(r.attrs[1], {*taken, *all_dims(term)}) for r in reduces(term) if r.attrs[1] in taken}
    return rename_dims(_rename_bound(term, names), dict(zip(axes, own, strict=True)))


def _fresh(dim: Dim, taken: Collection[Dim]) -> Dim:
    names = {d.name for d in taken}
    return next(Dim(name, dim.size) for k in count(1) if (name := f"{dim.name}.{k}") not in names)


def _rename_bound(term: Term, names: Mapping[Dim, Dim]) -> Term:
    """Other names for dims that reductions bind; free dims keep theirs."""

    def change(node: Term, args: tuple[Term, ...]) -> Term:
        if node.op == "reduce" and node.attrs[1] in names:
            monoid, dim = node.attrs
            return make("reduce", (at_place(args[0], dim, iota(names[dim])),), (monoid, names[dim]))
        return make(node.op, args, node.attrs)

    return rebuild(term, change)

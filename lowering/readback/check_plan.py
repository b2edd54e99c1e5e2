"""Holds a plan against what was asked for, on every compile.

The plan is read back as terms. Where such a term is the very term that was asked for, up to names of bound dims and the
order of a guard's parts, it is equal for every length and input. Else the two are evaluated at sampled indices, with
numbers in which equal programs are exactly equal.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from ...egraph.terms.ops import const, iota
from ...egraph.terms.sizes import resolve
from ...egraph.terms.term import Dim, Term
from ...egraph.terms.traversal import all_dims, subterms
from ..plan.records import NotPlannable, Plan, Store
from .canonical_terms import Canonical, at_indices
from .loop_limits import demand_limits
from .plan_meaning import Meaning, NotReadBack, read_back
from .ring_numbers import Numbers, of_integers
from .sample_points import Points, index_ranges, structured_sizes, symbol_values
from .sampled_values import SampledValues, axes_of

MOST_ELEMENTS = 2**22  # of an array; terms with larger ones are not compared at all indices
ALWAYS_WHOLE = 32  # indices of a dim that count as a whole where a few did not agree


@dataclass(frozen=True)
class ReadBack:
    """How many results are the very term, and how many were compared in numbers."""

    same: int
    compared: int
    attempts: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "read back"


def check(plan: Plan, asked: Sequence[Store]) -> ReadBack:
    """Raises NotReadBack where a plan does not mean what was asked for."""
    found = read_back(plan)
    if tuple(t.name for t in plan.outputs) != tuple(s.output.name for s in asked):
        raise NotReadBack("the plan has other results")
    canonical = Canonical()
    pairs: list[tuple[Term, Term]] = []
    for store in asked:
        if store.output.name not in found.stored:
            raise NotReadBack(f"nothing stores {store.output.name}")
        pairs.append(_pair(store, found.stored[store.output.name], canonical))
    different = [(a, b) for a, b in (*pairs, *found.equal) if a is not b]
    compare(plan, different)
    return ReadBack(len(pairs) - sum(a is not b for a, b in pairs), sum(a is not b for a, b in pairs))


def _pair(store: Store, found: Meaning, canonical: Canonical) -> tuple[Term, Term]:
    """What was asked for, by the dims of what is stored, and that."""
    from .plan_meaning import placed

    wanted = canonical(store.term)
    asked = placed(store, wanted) if store.places else Meaning(wanted, store.order, store.output)
    if asked.output.dtype != found.output.dtype:
        raise NotReadBack(f"{store.output.name} is stored as {found.output.dtype}")
    return asked.at(_indices(asked, found)), found.term


def _indices(asked: Meaning, found: Meaning) -> list[Term]:
    """For each axis that was asked for, its index by the axes of what is stored: the same place in memory."""
    mine, theirs = [*found.axes], [*asked.axes]
    indices: list[Term] = []
    while theirs:
        if mine and mine[0].size == theirs[0].size:
            mine_now, theirs_now = [mine.pop(0)], [theirs.pop(0)]
        else:
            mine_now, theirs_now = _of_one_length(mine, theirs)
        indices += _split(mine_now, theirs_now)
    if any(d.size != 1 for d in mine):
        raise NotReadBack(f"{asked.output.name} is stored with other axes")
    return indices


def _of_one_length(mine: list[Dim], theirs: list[Dim]) -> tuple[list[Dim], list[Dim]]:
    """The first axes of both that have equally many elements together."""
    while mine and mine[0].size == 1:
        mine.pop(0)
    one, other = [], []
    size = lambda dims: prod(d.size for d in dims)
    while not one or not other or size(one) != size(other):
        source, target = (mine, one) if not one or (other and size(one) < size(other)) else (theirs, other)
        if not source or not isinstance(source[0].size, int):
            raise NotReadBack("a result is stored with other axes")
        target.append(source.pop(0))
    return one, other


def _split(mine: list[Dim], theirs: list[Dim]) -> list[Term]:
    if len(mine) == 1 and len(theirs) == 1:
        return [iota(mine[0])]
    place = const(0)
    for dim in mine:
        place = place * const(dim.size) + iota(dim)
    indices, below = [], prod(d.size for d in theirs)
    for dim in theirs:
        below //= dim.size
        indices.append(place // const(below) % const(dim.size))
    return indices


# Comparison


def compare(plan: Plan, pairs: Sequence[tuple[Term, Term]]) -> None:
    """Raises NotReadBack where two terms differ, or where limits of a loop do not fit its guard."""
    loops = [(kernel, loop) for kernel in plan.kernels for loop in kernel.loops]
    own = [t for _, loop in loops for t in (loop.guard, *(x.bound for x in loop.limits)) if t is not None]
    terms = [*own, *(t for pair in pairs for t in pair)]
    dims = {d for _, loop in loops for d in (loop.dim, *loop.outer)} | {d for t in terms for d in all_dims(t)}
    structured = structured_sizes(terms)
    for sizes in symbol_values(terms, dims):
        lengths = tuple(sorted({resolve(d.size, sizes) for d in dims if d.size in structured}))
        points = Points(sizes, structured, frozenset(), lengths)
        values = SampledValues(points, index_ranges(terms, sizes), sizes)
        for kernel, loop in loops:
            demand_limits(kernel, loop, values)
        for pair in pairs:
            if not _agree(*pair, values) and not _agree_at_more(*pair, values):
                raise NotReadBack("it computes something else than what was asked for")


def _agree_at_more(a: Term, b: Term, values: SampledValues) -> bool:
    """Whether two terms agree where all indices of dims count that one of them may have in two dims or as one."""
    points: Points = values.indices
    free = {d: points(d)[-2:] for d in a.dims | b.dims}
    one, other = ({n.attrs[1] for n in subterms(t) if n.op == "reduce"} for t in (a, b))
    single = {points.length(d) for d in {*one} ^ {*other}} | {d.size for d in one} ^ {d.size for d in other}
    related = {d.size for d in one | other if _is_related(points.length(d), single)}
    for whole in (related, {d.size for d in one | other}):
        more = SampledValues(replace(points, whole=frozenset(whole), more=free, found={}), values.ranges, values.sizes)
        if _work(a, b, more) <= MOST_ELEMENTS and _agree(a, b, more):
            return True
    return False


def _is_related(length: int, single: set) -> bool:
    return length <= ALWAYS_WHOLE or any(isinstance(n, int) and (n % length == 0 or length % n == 0) for n in single)


def _work(a: Term, b: Term, values: SampledValues) -> int:
    """The most elements of an array."""
    return max(prod(len(values.indices(d)) for d in n.dims) for t in (a, b) for n in subterms(t))


def _agree(a: Term, b: Term, values: SampledValues) -> bool:
    """Whether two terms have the same values; where the first is undefined, the second may be anything."""
    axes = tuple(sorted(a.dims | b.dims, key=lambda d: (d.name, str(d.size))))
    one, other = (values.aligned(t, axes) for t in (a, b))
    if not isinstance(one, Numbers):
        if not isinstance(other, Numbers):
            return bool(np.all(one == other))
        one = of_integers(one)
    if not isinstance(other, Numbers):
        other = of_integers(other)
    undefined = np.zeros(one.shape, bool) if one.far is None else np.isnan(one.far)
    same = (one.residues == other.residues).all(axis=0)
    far = np.equal(0.0 if one.far is None else one.far, 0.0 if other.far is None else other.far)
    return bool((same & far | undefined).all())

"""Whether terms are equal: compared at sampled indices, with numbers in which equal programs are exactly equal.

Invariant: equal terms are never found different but for dims of which one term has two where the other has one; of such
dims all indices are looked at. Example: Σ_d x[d] and Σ_a Σ_b x[a · 8 + b], with 64 indices d and 8 of a and of b.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from math import prod

import numpy as np

from ...egraph.rewrite.guard import CLASSES
from ...egraph.terms.affine import affine, combine, to_term
from ...egraph.terms.sizes import resolve
from ...egraph.terms.term import Dim, Term
from ...egraph.terms.traversal import subterms
from ..plan.records import Kernel, Loop, Plan
from .loop_limits import demand_limits
from .plan_meaning import NotReadBack, part_of
from .ring_numbers import FAR_BELOW, RingNumbers, of_integers
from .sample_points import (
    MOST_INDICES,
    Points,
    index_ranges,
    nodes_of,
    offsets_of,
    structured_sizes,
    symbol_values,
    weighed_sizes,
)
from .sampled_values import LOG2_E, SampledValues

FEW_ELEMENTS = 2**14  # of an array: with larger ones, fewer indices of each dim are looked at, but at least
FEWEST_INDICES = 4
MOST_ELEMENTS = 2**20  # of an array; terms with larger ones are not compared at all indices
TRIALS = 2  # at least; more where too little of a result is defined
MOST_TRIALS = 6
ENOUGH_DEFINED = 4  # elements of a result
PARTS = 2  # in which loops are cut that have parts
DEEPEST = 100  # operations around a part that is compared alone
ALWAYS_WHOLE = 32  # indices of a dim that count as a whole where a few did not agree

Pairs = Sequence[tuple[Term, Term]]


def demand_equal(plan: Plan, pairs: Pairs) -> None:
    """Raises NotReadBack where two terms differ, or where limits of a loop of the plan do not fit its guard."""
    loops = [(kernel, loop) for kernel in plan.kernels for loop in kernel.loops]
    for trials in _drawings([loop for _, loop in loops], pairs):
        for values in trials[:TRIALS]:
            _demand_limits(loops, values)
        for pair in pairs:
            _demand_equal(*pair, trials)


def _demand_limits(loops: Sequence[tuple[Kernel, Loop]], values: SampledValues) -> None:
    for kernel, loop in loops:
        demand_limits(kernel, loop, values)


def _drawings(loops: Sequence[Loop], pairs: Pairs) -> Iterator[list[SampledValues]]:
    """For each choice of the symbols' values, several drawings of tensors and of indices."""
    nodes = nodes_of([*_terms_of(loops), *(t for pair in pairs for t in pair)])
    dims = {d for n in nodes for d in n.attrs if isinstance(d, Dim)} | {d for x in loops for d in (x.dim, *x.outer)}
    parts = [str(loop.part.size) for loop in loops if loop.part is not None]
    for sizes in symbol_values(nodes, dims):
        sizes |= dict.fromkeys(parts, PARTS)
        ranges = index_ranges(nodes, sizes) | {name: PARTS for name in _part_names(loops)}
        points = _of_little_work(_points(nodes, dims, sizes), pairs)
        drawn = [replace(points, trial=n, found={}) for n in range(MOST_TRIALS)]
        literals = _in_base_two(nodes)
        yield [SampledValues(drawn[n], ranges, sizes, n, literals) for n in range(MOST_TRIALS)]


def _part_names(loops: Sequence[Loop]) -> list[str]:
    return [part_of(loop).name for loop in loops if loop.part is not None]


def _points(nodes: Sequence[Term], dims: Collection[Dim], sizes: Mapping[str, int]) -> Points:
    structured = structured_sizes(nodes)
    lengths = tuple(sorted({resolve(d.size, sizes) for d in dims if d.size in structured}))
    return Points(sizes, structured, weighed_sizes(nodes), frozenset(), lengths, offsets_of(nodes))


def _terms_of(loops: Sequence[Loop]) -> list[Term]:
    """The guards and limits of loops."""
    found = [loop.guard for loop in loops if loop.guard is not None]
    return [*found, *(limit.bound for loop in loops for limit in loop.limits)]


def _in_base_two(every: Sequence[Term]) -> dict[float, Fraction]:
    """Literals with a factor of log2 e, each as the product that it is: exp(c · x) may be exp2(c · log2 e · x)."""
    nodes = [n for n in every if n.op in ("const", "exp2")]
    if all(n.op == "const" for n in nodes):
        return {}
    known = {abs(n.attrs[0]) for n in nodes if n.op == "const" and isinstance(n.attrs[0], float)} | {1.0}
    near = [Fraction(c) for c in known if FAR_BELOW < -c < 0]
    products = {sign * one * other for one in near for other in near for sign in (1, -1)}
    return {float(c) * LOG2_E: c * Fraction(LOG2_E) for c in products}


def _demand_equal(a: Term, b: Term, trials: Sequence[SampledValues]) -> None:
    """Raises NotReadBack where two terms differ, or where neither is defined anywhere."""
    defined = 0
    for number, values in enumerate(trials):
        found = PartsThatDiffer(values).agreement(a, b)
        found = _agreement(a, b, values) if found is None else found
        found = _agreement_at_more(a, b, values) if found is None else found
        if found is None:
            raise NotReadBack("it computes something else than what was asked for")
        defined += found
        if number + 1 >= TRIALS and defined >= ENOUGH_DEFINED:
            return
    if not defined:
        raise NotReadBack("what was asked for is undefined wherever it was looked at")


class PartsThatDiffer:
    """Compares two terms by the parts in which they differ: what is around equal parts has to be evaluated for none.

    Parts that have the same value, or are both undefined, at each index that is looked at, can stand for one another
    at these. Where parts differ, the terms around them are compared. Example: of e^(2 · x) / y and e^(x · 2) / y only
    the products.
    """

    def __init__(self, values: SampledValues):
        self.values = values
        self.known: dict[tuple[Term, Term], int | None] = {}

    def agreement(self, a: Term, b: Term, depth: int = 0) -> int | None:
        """At how many indices parts are defined, of those that have the fewest; None where the terms differ."""
        if (a, b) not in self.known:
            found = self._of_operands(a, b, depth + 1) if depth < DEEPEST and _same_operation(a, b) else None
            self.known[a, b] = _agreement(a, b, self.values, undefined=True) if found is None else found
        return self.known[a, b]

    def _of_operands(self, a: Term, b: Term, depth: int) -> int | None:
        crossed = a.op in CLASSES["commutative"] and not {*a.args}.isdisjoint(b.args)
        for other in (b.args, b.args[::-1]) if crossed else (b.args,):
            pairs = [(x, y) for x, y in zip(a.args, other, strict=True) if x is not y]
            if not crossed or len(pairs) == 1:
                found: list[int] = []
                while len(found) < len(pairs) and (count := self.agreement(*pairs[len(found)], depth)) is not None:
                    found.append(count)
                if found and len(found) == len(pairs):
                    return min(found)
        return None


def _same_operation(a: Term, b: Term) -> bool:
    return (a.op, a.attrs, len(a.args), a.dtype) == (b.op, b.attrs, len(b.args), b.dtype)


def _agreement_at_more(a: Term, b: Term, values: SampledValues) -> int | None:
    """The agreement of two terms where all indices of dims count that one of them may have in two dims or as one.

    It is looked for at elements that differed, as others may say nothing of them.
    """
    points: Points = values.indices
    free = _where_different(a, b, values)
    one, other = ({n.attrs[1].size for n in subterms(t) if n.op == "reduce"} for t in (a, b))
    length = lambda size: resolve(size, values.sizes)
    single = {length(size) for size in one ^ other}
    related = {size for size in one | other if _is_related(length(size), single)}
    solved = free | _where_equal((a, b), one ^ other, values)
    tries = [((), solved), (one ^ other, solved), (one ^ other, free), (related, free), (one | other, free)]
    for whole, indices in tries:
        again = replace(points, whole=frozenset(whole), more=indices, found={})
        more = SampledValues(again, values.ranges, values.sizes, values.trial, values.literals)
        small = _work({n.dims for n in nodes_of((a, b))}, again) <= MOST_ELEMENTS
        if small and (found := _agreement(a, b, more)) is not None:
            return found
    return None


def _where_equal(terms: Sequence[Term], single: Collection, values: SampledValues) -> dict[Dim, np.ndarray]:
    """Of dims of these sizes of which conditions keep one index, those that they keep at the samples of other dims."""
    found: dict[Dim, set[int]] = {}
    for node in {n for t in terms for n in subterms(t) if n.op == "eq" and n.args[0].dtype == "int64"}:
        for dim, index in _solved(node):
            if dim.size in single:
                found.setdefault(dim, set()).update(np.ravel(values.value(index)).tolist())
    inside = {d: [k for k in sorted(ks) if 0 <= k < values.indices.length(d)] for d, ks in found.items()}
    return {d: np.array(ks) for d, ks in inside.items() if ks}


def _solved(equation: Term) -> Iterator[tuple[Dim, Term]]:
    """Each dim whose index follows from an equation, and that index."""
    form = combine(affine(equation.args[0]), affine(equation.args[1]), -1)
    for atom, c in form[0].items():
        if atom.op == "iota" and abs(c) == 1:
            rest = to_term(combine(({}, 0), combine(form, ({atom: 1}, 0), -c), -c))
            if atom.attrs[0] not in rest.dims:
                yield atom.attrs[0], rest


def _is_related(length: int, single: set[int]) -> bool:
    return length <= ALWAYS_WHOLE or any(n % length == 0 or length % n == 0 for n in single)


def _of_little_work(points: Points, pairs: Sequence[tuple[Term, Term]]) -> Points:
    """The points, fewer of them where arrays would be large."""
    every = {n.dims for n in nodes_of(t for pair in pairs for t in pair)}
    for most in range(MOST_INDICES, FEWEST_INDICES, -3):
        points = replace(points, most=most, found={})
        if _work(every, points) <= FEW_ELEMENTS:
            break
    return points


def _work(every: Collection[frozenset[Dim]], points: Points) -> int:
    """The most elements of an array, of the dims of all."""
    return max((prod(len(points(d)) for d in dims) for dims in every), default=0)


def _agreement(a: Term, b: Term, values: SampledValues, undefined: bool = False) -> int | None:
    """At how many indices two terms have the same defined value; None where they differ.

    Where the first is undefined, the second may be anything; with `undefined`, it has to be that, too.
    """
    counts = []
    for same, defined in _comparisons(a, b, values, undefined):
        if not same.all():
            return None
        counts.append(int(np.broadcast_to(defined, same.shape).sum()))
    return min(counts)


def _where_different(a: Term, b: Term, values: SampledValues) -> dict[Dim, np.ndarray]:
    """Of each dim the indices of two elements that differ, the first and the last of those that are looked at."""
    axes = _axes(a, b)
    every = tuple(len(values.indices(d)) for d in axes)
    differing = (np.argwhere(np.broadcast_to(~same, every)) for same, _ in _comparisons(a, b, values))
    found = next(places for places in differing if len(places))[[0, -1]]
    return {d: values.indices(d)[np.unique(column)] for d, column in zip(axes, found.T, strict=True)}


def _axes(a: Term, b: Term) -> tuple[Dim, ...]:
    return tuple(sorted(a.dims | b.dims, key=lambda d: (d.name, str(d.size))))


def _comparisons(
    a: Term, b: Term, values: SampledValues, undefined: bool = False
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Of each number that the terms are: whether the two are the same, and whether the first is defined."""
    axes = _axes(a, b)
    for one, other in zip(*(_parts(values.aligned(t, axes)) for t in (a, b)), strict=True):
        far, theirs = (0.0 if x.far is None else x.far for x in (one, other))
        same = (one.residues == other.residues).all(axis=0) & np.equal(far, theirs)
        nowhere = np.isnan(far)
        yield same | (nowhere & np.isnan(theirs) if undefined else nowhere), ~nowhere


def _parts(value) -> tuple[RingNumbers, ...]:
    """Numbers alone, and the two of a state."""
    parts = value if isinstance(value, tuple) else (value,)
    return tuple(x if isinstance(x, RingNumbers) else of_integers(x) for x in parts)

"""Holds a plan against what was asked for, on every compile.

The plan is read back as terms. Where such a term is the very term that was asked for, up to names of bound dims and the
order of a guard's parts, it is equal for every length and input. Else the two are evaluated at sampled indices, with
numbers in which equal programs are exactly equal.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import prod

import numpy as np

from ...egraph.terms.affine import affine, combine, to_term
from ...egraph.terms.ops import const, iota, load, make
from ...egraph.terms.sizes import UnknownSize, resolve
from ...egraph.terms.term import Dim, Tensor, Term, TermError
from ...egraph.terms.traversal import all_dims, rebuild, subterms
from ..plan.records import NotPlannable, Plan, Store
from .canonical_terms import Canonical, at_indices
from .loop_limits import demand_limits
from .plan_meaning import Meaning, NotReadBack, part_of, placed, read_back
from .ring_numbers import FAR_BELOW, Numbers, of_integers
from .sample_points import MOST, Points, index_ranges, offsets_of, structured_sizes, symbol_values, weighed_sizes
from .sampled_values import LOG2_E, SampledValues

ERRORS = (TermError, UnknownSize, ArithmeticError, LookupError, TypeError, ValueError, AttributeError)
OTHER_AXES = "a result is stored with other axes than it was asked for"
FEW_ELEMENTS = 2**14  # of an array: with larger ones, fewer indices of each dim are looked at, but at least
FEWEST = 4
MOST_ELEMENTS = 2**20  # of an array; terms with larger ones are not compared at all indices
TRIALS = 2  # at least; more where too little of a result is defined
MOST_TRIALS = 6
ENOUGH_DEFINED = 4  # elements of a result
PARTS = 2  # in which loops are cut that have parts
ALWAYS_WHOLE = 32  # indices of a dim that count as a whole where a few did not agree


@dataclass(frozen=True)
class ReadBack:
    """How many results are the very terms that were asked for, and how many were found equal in numbers."""

    same: int
    equal: int

    def __str__(self) -> str:
        found = [f"{_many(self.same)} as asked for"] if self.same else []
        found += [f"{_many(self.equal)} equal in a finite ring at sampled indices"] if self.equal else []
        return f"read back: {', '.join(found)}"


def _many(count: int) -> str:
    return f"{count} term{'' if count == 1 else 's'}"


def checked(plan: Plan, asked: Sequence[Store]) -> Plan:
    """The plan, which says how it was read back. Raises NotPlannable for one that does not mean what was asked for.

    An error of the reader is no other case: what cannot be read is not run.
    """
    try:
        return replace(plan, read_back=str(check(plan, asked)))
    except (NotReadBack, *ERRORS) as error:
        raise NotPlannable(f"the plan was not read back: {error or type(error).__name__}") from error


def differs(plan: Plan, original: Plan) -> str:
    """Why a plan that was made of another one does not compute its results; empty where it does."""
    try:
        found = read_back(original).stored
        check(plan, [Store(m.term, m.output, m.axes) for m in (found[t.name] for t in original.outputs)])
    except (NotReadBack, *ERRORS) as error:
        return f"it was not read back as the plan that it is made of: {error or type(error).__name__}"
    return ""


def differs_in_order(plan: Plan, original: Plan, orders: Mapping[str, Sequence[int]]) -> str:
    """Why a plan with other orders of the axes of these tensors does not compute what the original one does; or empty."""

    def turned(tensor: Tensor) -> Tensor:
        order = orders.get(tensor.name, range(len(tensor.shape)))
        return replace(tensor, shape=tuple(tensor.shape[axis] for axis in order))

    def change(node: Term, args: tuple[Term, ...]) -> Term:
        if node.op != "load" or node.attrs[0].name not in orders:
            return node if args == node.args else make(node.op, args, node.attrs)
        return load(turned(node.attrs[0]), *(args[axis] for axis in orders[node.attrs[0].name]))

    try:
        found = [read_back(original).stored[t.name] for t in original.outputs]
        axes = [tuple(m.axes[axis] for axis in orders.get(m.output.name, range(len(m.axes)))) for m in found]
        pairs = zip(found, axes, strict=True)
        check(plan, [Store(rebuild(m.term, change), turned(m.output), order) for m, order in pairs])
    except (NotReadBack, *ERRORS) as error:
        return f"in the order of memory it was not read back as the plan: {error or type(error).__name__}"
    return ""


def check(plan: Plan, asked: Sequence[Store]) -> ReadBack:
    """How a plan means what was asked for. Raises NotReadBack where it does not."""
    found = read_back(plan)
    if [t.name for t in plan.outputs] != [s.output.name for s in asked]:
        raise NotReadBack("it has other results")
    canonical = Canonical()
    pairs = [_pair(store, found.stored, canonical) for store in asked]
    different = [pair for pair in (*pairs, *found.equal) if pair[0] is not pair[1]]
    compare(plan, different)
    same = sum(one is other for one, other in pairs)
    return ReadBack(same, len(pairs) - same)


def _pair(store: Store, stored: Mapping[str, Meaning], canonical: Canonical) -> tuple[Term, Term]:
    """What was asked for, by the dims of what is stored, and what is."""
    found = stored.get(store.output.name)
    if found is None or found.output.dtype != store.output.dtype:
        raise NotReadBack(f"nothing stores {store.output.name} as {store.output.dtype}")
    wanted = canonical(store.term)
    asked = placed(store, wanted) if store.places else Meaning(wanted, store.order, store.output)
    return asked.at(_indices(asked, found)), found.term


def _indices(asked: Meaning, found: Meaning) -> list[Term]:
    """For each axis that was asked for, its index by the axes of what is stored: the same place in memory."""
    mine, theirs = [*found.axes], [*asked.axes]
    indices: list[Term] = []
    while theirs:
        if mine and mine[0].size == theirs[0].size:
            indices += _split([mine.pop(0)], [theirs.pop(0)])
        elif theirs[0].size == 1:
            indices += _split([], [theirs.pop(0)])
        elif mine and mine[0].size == 1:
            mine.pop(0)
        else:
            indices += _split(*_of_one_length(mine, theirs))
    if any(d.size != 1 for d in mine):
        raise NotReadBack(OTHER_AXES)
    return indices


def _of_one_length(mine: list[Dim], theirs: list[Dim]) -> tuple[list[Dim], list[Dim]]:
    """The first axes of both that have equally many elements together."""
    one, other = [], []
    size = lambda dims: prod(d.size for d in dims)
    while not one or not other or size(one) != size(other):
        source, target = (mine, one) if not one or (other and size(one) < size(other)) else (theirs, other)
        if not source or not isinstance(source[0].size, int):
            raise NotReadBack(OTHER_AXES)
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
    literals, offsets = _in_base_two(terms), offsets_of(terms)
    structured, weighed = structured_sizes(terms), weighed_sizes(terms)
    parted = [loop for _, loop in loops if loop.part is not None]
    for sizes in symbol_values(terms, dims):
        sizes |= {str(loop.part.size): PARTS for loop in parted}
        lengths = tuple(sorted({resolve(d.size, sizes) for d in dims if d.size in structured}))
        points = _of_little_work(Points(sizes, structured, weighed, frozenset(), lengths, offsets), pairs)
        ranges = index_ranges(terms, sizes) | {part_of(loop).name: PARTS for loop in parted}
        drawn = [replace(points, trial=n, found={}) for n in range(MOST_TRIALS)]
        trials = [SampledValues(drawn[n], ranges, sizes, n, literals) for n in range(MOST_TRIALS)]
        for values in trials[:TRIALS]:
            for kernel, loop in loops:
                demand_limits(kernel, loop, values)
        for pair in pairs:
            _demand_equal(*pair, trials)


def _in_base_two(terms: Sequence[Term]) -> dict[float, Fraction]:
    """Literals with a factor of log2 e, where exp(c · x) may be exp2(c · log2 e · x), each as the product that it is."""
    nodes = {n for t in terms for n in subterms(t) if n.op in ("const", "exp2")}
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
        found = _agreement(a, b, values)
        found = _agreement_at_more(a, b, values) if found is None else found
        if found is None:
            raise NotReadBack("it computes something else than what was asked for")
        defined += found
        if number + 1 >= TRIALS and defined >= ENOUGH_DEFINED:
            return
    if not defined:
        raise NotReadBack("what was asked for is undefined wherever it was looked at")


def _agreement_at_more(a: Term, b: Term, values: SampledValues) -> int | None:
    """The agreement of two terms where all indices of dims count that one of them may have in two dims or as one."""
    points: Points = values.indices
    free = {d: points(d)[-2:] for d in a.dims | b.dims}
    one, other = ({n.attrs[1].size for n in subterms(t) if n.op == "reduce"} for t in (a, b))
    length = lambda size: resolve(size, values.sizes)
    single = {length(size) for size in one ^ other}
    related = {size for size in one | other if _is_related(length(size), single)}
    solved = free | _where_equal((a, b), one ^ other, values)
    tries = [((), solved), (one ^ other, solved), (one ^ other, free), (related, free), (one | other, free)]
    for whole, indices in tries:
        again = replace(points, whole=frozenset(whole), more=indices, found={})
        more = SampledValues(again, values.ranges, values.sizes, values.trial, values.literals)
        if _work((a, b), again) <= MOST_ELEMENTS and (found := _agreement(a, b, more)) is not None:
            return found
    return None


def _where_equal(terms: Sequence[Term], single: Collection, values: SampledValues) -> dict[Dim, np.ndarray]:
    """Of dims of these sizes of which conditions keep one index, those that they keep at the samples of other dims."""
    found: dict[Dim, set[int]] = {}
    for node in {n for t in terms for n in subterms(t) if n.op == "eq" and n.args[0].dtype == "int64"}:
        form = combine(affine(node.args[0]), affine(node.args[1]), -1)
        for atom, c in form[0].items():
            if atom.op == "iota" and abs(c) == 1 and atom.attrs[0].size in single:
                rest = to_term(combine(({}, 0), combine(form, ({atom: 1}, 0), -c), -c))
                if atom.attrs[0] not in rest.dims:
                    found.setdefault(atom.attrs[0], set()).update(np.ravel(values.value(rest)).tolist())
    inside = {d: [k for k in sorted(ks) if 0 <= k < values.indices.length(d)] for d, ks in found.items()}
    return {d: np.array(ks) for d, ks in inside.items() if ks}


def _is_related(length: int, single: set[int]) -> bool:
    return length <= ALWAYS_WHOLE or any(n % length == 0 or length % n == 0 for n in single)


def _of_little_work(points: Points, pairs: Sequence[tuple[Term, Term]]) -> Points:
    """The points, fewer of them where arrays would be large."""
    terms = [t for pair in pairs for t in pair]
    for most in range(MOST, FEWEST, -3):
        points = replace(points, most=most, found={})
        if not terms or _work(terms, points) <= FEW_ELEMENTS:
            break
    return points


def _work(terms: Sequence[Term], points: Points) -> int:
    """The most elements of an array."""
    every = {n.dims for t in terms for n in subterms(t)}
    return max(prod(len(points(d)) for d in dims) for dims in every)


def _agreement(a: Term, b: Term, values: SampledValues) -> int | None:
    """At how many indices two terms have the same defined value; None where they differ.

    Where the first is undefined, the second may be anything.
    """
    axes = tuple(sorted(a.dims | b.dims, key=lambda d: (d.name, str(d.size))))
    one, other = (_numbers(values.aligned(t, axes)) for t in (a, b))
    far, theirs = (0.0 if x.far is None else x.far for x in (one, other))
    same = (one.residues == other.residues).all(axis=0) & np.equal(far, theirs)
    undefined = np.isnan(far)
    if not (same | undefined).all():
        return None
    return int(np.broadcast_to(~undefined, same.shape).sum())


def _numbers(value) -> Numbers:
    return value if isinstance(value, Numbers) else of_integers(value)

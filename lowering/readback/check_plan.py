"""Holds a plan against what was asked for, on every compile.

The plan is read back as terms, and what it does in blocks or parts as whole reductions, by laws. Where such a term is
the very term that was asked for, up to names of bound dims and the order of a guard's parts, it is equal for every
length and input. Else the two are evaluated at sampled indices, with numbers in which equal programs are exactly equal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from ...egraph.terms.ops import const, iota, load, make
from ...egraph.terms.sizes import UnknownSize
from ...egraph.terms.term import Dim, Tensor, Term, TermError
from ...egraph.terms.traversal import rebuild
from ...rules.demotion import read_of_stored
from ..plan.records import NotPlannable, Plan, Store
from .canonical_terms import Canonical
from .compare_terms import demand_equal
from .erase_stored import erased
from .plan_meaning import Meaning, NotReadBack, placed, read_back
from .whole_reductions import WholeReductions

ERRORS = (TermError, UnknownSize, ArithmeticError, LookupError, TypeError, ValueError, AttributeError)
OTHER_AXES = "a result is stored with other axes than it was asked for"


@dataclass(frozen=True)
class ReadBack:
    """How many results are the very terms that were asked for, and how many were found equal in numbers.

    parts: the names of what kernels store for one another: the law stored(x) = x takes them out. laws: the names of
    those by which reductions in blocks or parts are whole ones.
    """

    same: int
    equal: int
    parts: tuple[str, ...] = ()
    laws: tuple[str, ...] = ()

    def __str__(self) -> str:
        found = [f"{_many(self.same)} as asked for"] if self.same else []
        found += [f"{_many(self.equal)} equal in a finite ring at sampled indices"] if self.equal else []
        stored = f", {', '.join(self.parts)} by the law {read_of_stored.name}" if self.parts else ""
        whole = f", reductions by the law {' and '.join(self.laws)}" if self.laws else ""
        return f"read back{stored}{whole}: {', '.join(found)}"


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
        check(plan, [Store(m.term, m.output, m.axes) for m in _results(original)])
    except (NotReadBack, *ERRORS) as error:
        return f"it was not read back as the plan that it is made of: {error or type(error).__name__}"
    return ""


def differs_in_order(plan: Plan, original: Plan, orders: Mapping[str, Sequence[int]]) -> str:
    """Why a plan with other orders of these tensors' axes does not compute what the original one does; or empty."""

    def turned(tensor: Tensor) -> Tensor:
        order = orders.get(tensor.name, range(len(tensor.shape)))
        return replace(tensor, shape=tuple(tensor.shape[axis] for axis in order))

    def change(node: Term, args: tuple[Term, ...]) -> Term:
        if node.op != "load" or node.attrs[0].name not in orders:
            return node if args == node.args else make(node.op, args, node.attrs)
        return load(turned(node.attrs[0]), *(args[axis] for axis in orders[node.attrs[0].name]))

    try:
        found = _results(original)
        axes = [tuple(m.axes[axis] for axis in orders.get(m.output.name, range(len(m.axes)))) for m in found]
        pairs = zip(found, axes, strict=True)
        check(plan, [Store(rebuild(m.term, change), turned(m.output), order) for m, order in pairs])
    except (NotReadBack, *ERRORS) as error:
        return f"in the order of memory it was not read back as the plan: {error or type(error).__name__}"
    return ""


def _results(plan: Plan) -> list[Meaning]:
    """What the results of a plan are, over its inputs alone."""
    names = [t.name for t in plan.outputs]
    return [*erased(read_back(plan), names).stored.values()]


def check(plan: Plan, asked: Sequence[Store]) -> ReadBack:
    """How a plan means what was asked for. Raises NotReadBack where it does not."""
    found = read_back(plan)
    if [t.name for t in plan.outputs] != [s.output.name for s in asked]:
        raise NotReadBack("it has other results")
    results = [t.name for t in plan.outputs if t.name in found.stored]
    parts = tuple(name for name in found.stored if name not in results)
    found = erased(found, results)
    canonical = Canonical()
    pairs = [_pair(store, found.stored, canonical) for store in asked]
    whole = WholeReductions()
    pairs = [pair if pair[0] is pair[1] else (whole(pair[0]), whole(pair[1])) for pair in pairs]
    different = [pair for pair in (*pairs, *found.equal) if pair[0] is not pair[1]]
    demand_equal(plan, different)
    same = sum(one is other for one, other in pairs)
    return ReadBack(same, len(pairs) - same, parts, tuple(whole.laws))


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
    one: list[Dim] = []
    other: list[Dim] = []
    size = lambda dims: prod(d.size for d in dims)
    while not one or not other or size(one) != size(other):
        source, target = (mine, one) if not one or (other and size(one) < size(other)) else (theirs, other)
        if not source or not isinstance(source[0].size, int):
            raise NotReadBack(OTHER_AXES)
        target.append(source.pop(0))
    return one, other


def _split(mine: list[Dim], theirs: list[Dim]) -> list[Term]:
    """The index along each of these axes, by axes of as many elements."""
    if len(mine) == 1 and len(theirs) == 1:
        return [iota(mine[0])]
    place: Term = const(0)
    for dim in mine:
        place = place * const(_static(dim)) + iota(dim)
    indices, below = [], prod(map(_static, theirs))
    for dim in theirs:
        below //= _static(dim)
        indices.append(place // const(below) % const(_static(dim)))
    return indices


def _static(dim: Dim) -> int:
    if not isinstance(dim.size, int):
        raise NotReadBack(OTHER_AXES)
    return dim.size

"""What a forward may store for its backward: logarithms of sums of exponentials, quotients of sums, values by row.

A saved value is no larger than a result, and what computes it in the forward does not overflow. The equations between
saved values and forms without shifts are all that a gradient is told. Example: L = m + log Σ_j exp(s - m), with
exp(L) = Σ_j exp(s). Where m may be so large that the sum absorbs the logarithm, both are saved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from math import inf, isfinite
from operator import add, and_
from typing import Protocol, TypeVar

from ..derivation.normalize import Normaliser, canonical_names
from ..search.cost import streamed
from ..terms.addends import addends, may_mask
from ..terms.ops import cast, const, eq, exp, iota, load, log, make, mantissa, rescaled_sum, scale, where
from ..terms.term import FLOATS, Dim, Tensor, Term
from ..terms.traversal import all_dims, factors, operands, reduces, rename_dims, subterms
from .partials import NotDifferentiable


@dataclass(frozen=True)
class Saved:
    """A value that the forward stores for the backward: what computes it, and the dims of its axes."""

    tensor: Tensor
    term: Term
    order: tuple[Dim, ...]


class HasTerm(Protocol):
    """A result of the forward."""

    @property
    def term(self) -> Term:
        """What it is."""
        ...


R = TypeVar("R", bound=HasTerm)


def saved_value(name: str, term: Term, dims: tuple[Dim, ...], weak: str = "float32", full: str = "float32") -> Saved:
    """A value to store: in float64 or as truth values if it is that, else in `full`. weak: the dtype of a value that is
    made of literals alone."""
    dtype = weak if term.dtype == "float" else term.dtype if term.dtype in ("float64", "bool") else full
    return Saved(Tensor(name, dtype, tuple(d.size for d in dims)), term, dims)


def read(tensor: Tensor, order: Sequence[Dim]) -> Term:
    """The tensor's element at the dims."""
    return load(tensor, *(iota(dim) for dim in order))


def as_dtype(saved: Saved, dtype: str) -> Term:
    """The saved value, read as a term of the dtype."""
    found = read(saved.tensor, saved.order)
    return found if found.dtype == dtype or (found.dtype, dtype) == ("float64", "float") else cast(found, dtype)


def arranged(term: Term, order: Sequence[Dim]) -> tuple[Dim, ...]:
    """The term's dims in the order of the results' axes; others behind them."""
    return tuple(d for d in order if d in term.dims) + tuple(sorted(term.dims - {*order}))


def is_by_row(term: Term, order: Sequence[Dim]) -> bool:
    """Whether a term has no long dim that the results lack: it is no larger than they are."""
    return not any(streamed(d) and d not in order for d in term.dims)


def holds_long_sum(term: Term) -> bool:
    """Whether a term reduces over a long dim: it is dear to compute again."""
    return any(streamed(r.attrs[1]) for r in reduces(term))


# Logarithms -----------------------------------------------------------------------------------------------------------


MAX_SHIFT_OF_ONE_NUMBER = 2.0**10  # of a larger literal's sum with a logarithm, float32 keeps less than 2^-13 of this


@dataclass(frozen=True)
class Logarithm:
    """The logarithm of a sum of exponentials: one saved value, or a shift and the logarithm of what is left by it.

    total: the sum, in the form without shifts. shift: what the forward shifts all of its exponents by.
    """

    total: Term
    parts: tuple[Saved, ...]
    shift: Term

    @property
    def term(self) -> Term:
        """What it is in the forward."""
        return reduce(Term.__add__, (part.term for part in self.parts))

    def read(self) -> Term:
        """What a gradient reads."""
        return reduce(Term.__add__, (as_dtype(part, self.total.dtype) for part in self.parts))


def logarithms(results: Mapping[R, Normaliser], order: Sequence[Dim], apart: bool = False) -> Iterator[Logarithm]:
    """For every sum of exponentials in forms without shifts, its logarithm. results: with what makes the form of each.

    apart: each shift is saved beside what is left of its logarithm.
    """
    weak = _widest(results)
    for number, (form, (shift, rest)) in enumerate(_sums_of_exponentials(results).items()):
        named = lambda name, term, end=str(number or ""): saved_value(name + end, term, arranged(term, order), weak)
        far = apart or any(map(_is_far, subterms(form, lambda n: n.op == "exp")))
        yield _logarithm(form, shift, rest, named, far)


def _sums_of_exponentials(results: Mapping[R, Normaliser]) -> dict[Term, tuple[Term, Term]]:
    """Every sum of exponentials in forms, with a shift and the logarithm of what is left. Inner ones come first."""
    found: dict[Term, tuple[Term, Term]] = {}
    for result, free in results.items():
        for z, m in _shifted_sums(result.term):
            form = free.normal(z)
            if form.op == "div" and form.args[1] is free.normal(exp(m)):
                found.setdefault(form.args[0], (m, log(z)))
    inside = {part for form in found for part in subterms(form)}
    for result, free in results.items():
        for node in reduces(free.normal(result.term)):
            parts = exponential_parts(node)
            if parts is not None and parts[1] is None and node not in inside and not _is_share(parts[0]):
                found.setdefault(node, _shift_and_log(node.attrs[1], parts[0]))
        for total, node in _added_exponentials(result.term, free):
            found.setdefault(total, (node, const(0.0)))
    return found


def _added_exponentials(root: Term, free: Normaliser) -> Iterator[tuple[Term, Term]]:
    """Every sum of two exponentials of which the forward computes the logarithm, with what computes it."""
    for node in subterms(root):
        form = free.normal(node)
        if form.op == "log" and form.args[0].op == "add" and all(part.op == "exp" for part in form.args[0].args):
            yield form.args[0], node


def _is_share(s: Term) -> bool:
    """Whether exp(s) is at most 1, an exponential over a sum that it is part of: its sums need no logarithm."""
    s = _unmasked(s, const(-inf))[1]
    if s.op != "sub" or s.args[1].op != "log":
        return False
    part, total = exp(s.args[0]), s.args[1].args[0]
    parts = {*subterms(total)}
    return any(alike in parts for alike in _at_dims(part, [r.attrs[1] for r in reduces(total)]))


def _at_dims(node: Term, dims: Iterable[Dim]) -> Iterator[Term]:
    """The node, and the node with one of the dims instead of another one as long."""
    yield node
    for dim in dims:
        if dim not in all_dims(node):
            yield from (rename_dims(node, {d: dim}) for d in node.dims if d.size == dim.size)


def _widest(results: Iterable[HasTerm]) -> str:
    """The dtype of what is computed from literals alone: float64 beside such results, else float32."""
    return "float64" if any(result.term.dtype == "float64" for result in results) else "float32"


def _logarithm(form: Term, shift: Term, rest: Term, named: Callable[[str, Term], Saved], apart: bool) -> Logarithm:
    """One value for both, unless they are saved apart. A rest of 0 is not saved."""
    kept = lambda term: where(eq(shift, const(-inf)), const(inf), term) if _leaves_out_rows(form) else term
    if apart and rest is not const(0.0):
        return Logarithm(form, (named("shift", kept(shift)), named("log", kept(rest))), shift)
    return Logarithm(form, (named("log", kept(shift if rest is const(0.0) else shift + rest)),), shift)


def _leaves_out_rows(total: Term) -> bool:
    """Whether a sum, or one of its addends, is left out in whole rows.

    Its exponentials are then under no mask of their own in a gradient, where a row that is left out must give 0, and
    exp(s - ∞) is 0. With -∞, as the logarithm of no elements, it would be infinite.
    """
    return any(part.op == "where" for part in operands(total, "add"))


def _is_far(node: Term) -> bool:
    """Whether an exponent may be a number that absorbs a logarithm: a large literal, or what a mask tensor holds."""
    return node.op == "exp" and (_holds_mask(node.args[0]) or multiplies_mask(node.args[0]))


def multiplies_mask(form: Term) -> bool:
    """Whether a masked score is a factor: a sum or a choice that may hold a mask's number, and holds a reduction."""
    sums = (x for n in subterms(form) if n.op in ("mul", "div") for x in n.args if x.op in ("add", "sub", "where"))
    return any(_holds_mask(x) and bool(reduces(x)) for x in dict.fromkeys(sums))


def _holds_mask(x: Term) -> bool:
    return any(may_mask(part) or _is_large(part) for part in addends(x))


def _is_large(x: Term) -> bool:
    return x.op == "const" and isfinite(x.attrs[0]) and abs(x.attrs[0]) > MAX_SHIFT_OF_ONE_NUMBER


def _shifted_sums(root: Term) -> list[tuple[Term, Term]]:
    """Sums of exponentials that have one shift m, terms beside the sum included: Σ_j exp(s - m) + exp(t - m)."""
    found: dict[Term, Term] = {}
    for node in subterms(root):
        if node.op == "reduce" and node.attrs[0] == "sum":
            m = _shift(node.args[0])
            if m is not None and node.attrs[1] not in m.dims:
                found[node] = m
        elif node.op == "add" and (m := _common_shift(node, found)) is not None:
            for a in node.args:
                found.pop(a, None)
            found[node] = m
    return list(found.items())


def _common_shift(added: Term, sums: Mapping[Term, Term]) -> Term | None:
    """The one shift of two that are added, exponentials or sums; of two exponentials only if it is a larger of two."""
    first, second = (sums.get(a, _shift(a)) for a in added.args)
    if first is None or first is not second:
        return None
    return first if first.op == "maximum" or any(a in sums for a in added.args) else None


def _shift(x: Term) -> Term | None:
    """m of exp(s - m), of exp(-m), and of where(p, exp(s - m), 0)."""
    x = x.args[1] if x.op == "where" else x
    if x.op != "exp" or x.args[0].op not in ("sub", "neg"):
        return None
    return x.args[0].args[-1]


def log_of_sum(dim: Dim, s: Term) -> Term:
    """log Σ_dim exp(s) by way of a rescaled state, which does not overflow."""
    shift, rest = _shift_and_log(dim, s)
    return shift + rest


def _shift_and_log(dim: Dim, s: Term) -> tuple[Term, Term]:
    state = rescaled_sum(dim, s, const(1.0))
    return scale(state), log(mantissa(state))


class Unbounded(NotDifferentiable):
    """A gradient with an exponential that could overflow where none does in the forward."""

    def __init__(self) -> None:
        super().__init__("an exponential could overflow in a derivative, and cannot in the forward", "exp")


class Bounded:
    """Refuses a gradient whose exponentials could overflow where the forward's do not.

    Over the reals exp(s) / exp(L) is exp(s - L), and only one of them is always a number. An exponent is bounded if it
    is s - L for an s of the sum that L is the logarithm of, if it is L - m for the shift m of that sum, or if the
    forward as written has it; each with any names of dims.
    """

    def __init__(self, sums: Iterable[Logarithm], results: Iterable[HasTerm], laws: Normaliser):
        written = {n for r in results for n in subterms(r.term) if n.op == "exp"}
        sums = [*sums]
        shifted = (laws.normal(exp(one.read() - one.shift)) for one in sums)  # the sum as the forward has it
        self.written = {*map(canonical_names, (*written, *map(laws.normal, written), *shifted))}
        self.shifted: set[Term] = set()
        powers: dict[Term, list[Term]] = {}  # of the exponential of a logarithm: those that its sum adds up
        for one in sums:
            own = [node for node in subterms(one.total, lambda n: n.op == "exp") if node.op == "exp"]
            own += [inner for node in own for inner in powers.get(laws.normal(node), ())]
            powers[exp(one.read())] = own
            self.shifted |= {canonical_names(laws.normal(node / exp(one.read()))) for node in own}

    def check(self, terms: Iterable[Term]) -> None:
        """Raises Unbounded for an exponential that is not bounded."""
        for node in (n for term in terms for n in subterms(term)):
            if node.op == "exp" and not self._is_bounded(node):
                raise Unbounded

    def _is_bounded(self, node: Term) -> bool:
        """Of one exponential, or of the product of two that met: exp((s + t) - L) with exp(t) bounded, too."""
        form = canonical_names(node)
        if form in self.written or form in self.shifted:
            return True
        above = node.args[0]
        shifts: list[Term] = []
        while above.op == "sub":
            above, shift = above.args
            shifts.insert(0, shift)
        pairs = (above.args, above.args[::-1]) if above.op == "add" else ()
        less = ((canonical_names(exp(reduce(Term.__sub__, shifts, s))), t) for s, t in pairs)
        return any(form in self.shifted and self._is_bounded(exp(t)) for form, t in less)


# Means ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Mean:
    """A weighted sum of exponentials, Σ_j exp(s) · w, and the logarithm L of a sum that holds the same exponentials.

    score, weight: s and w; where elements are masked, s is -∞. Over the reals the sum is m · exp(L), where m is the
    mean that the quotient by exp(L) is; `value` computes m.
    """

    total: Term
    log: Logarithm
    score: Term
    weight: Term

    @property
    def value(self) -> Term:
        """The mean by way of rescaled states, which do not overflow; what else the divisor sums takes its share."""
        dim = self.total.attrs[1]
        states = [rescaled_sum(dim, self.score, weight) for weight in self.weights]
        whole = reduce(add, map(mantissa, states))
        if self.log.total.op == "reduce":
            return whole / mantissa(rescaled_sum(dim, self.score, const(1.0)))
        present = where(eq(scale(states[0]), const(-inf)), const(0.0), whole)  # no element: the share is nothing
        return present * exp(reduce(Term.__sub__, (part.term for part in self.log.parts), scale(states[0])))

    def kind(self, results: Iterable[Tensor]) -> str:
        """The dtype in which it is stored: that of the matrix it is a mean of, if results have that dtype, too.

        Results that are such means are read as they were rounded; so is this one. Its products may round their weights.
        """
        weight = self.weight.args[0] if self.weight.op == "cast" else self.weight
        is_matrix = weight.op == "load" and bool(weight.dims - self.score.dims)
        return weight.dtype if is_matrix and {weight.dtype} == {t.dtype for t in results} else "float32"

    @property
    def weights(self) -> list[Term]:
        """The weight, or its addends where it has more dims than the score: each makes a product of matrices there."""
        return [self.weight] if self.weight.dims <= self.score.dims else operands(self.weight, "add")


def means(forms: Iterable[Term], sums: Sequence[Logarithm], order: Sequence[Dim]) -> list[Mean]:
    """The weighted sums of exponentials in the forms whose plain sum has a logarithm."""
    logs: dict[tuple[Dim, Term], Logarithm] = {}
    for one in sums:
        for node in reduces(one.total):
            parts = exponential_parts(node)
            if parts is not None and parts[1] is None:
                logs.setdefault((node.attrs[1], parts[0]), one)
    found: dict[Term, Mean] = {}
    for node in (node for form in forms for node in reduces(form)):
        for (dim, score), of_sum in logs.items():
            weight = weight_of(node, score) if node.attrs == ("sum", dim) and is_by_row(node, order) else None
            if weight is not None and weight is not const(1.0):
                found.setdefault(node, Mean(node, of_sum, score, weight))
    return list(found.values())


def weight_of(node: Term, score: Term) -> Term | None:
    """w of the sum Σ_j exp(s) · w for this score s; None if it is no such sum.

    A sum may keep fewer elements than the score does: what it leaves out has the weight 0.
    """
    kept, body = _unmasked(node.args[0], const(0.0))
    asked, score = _unmasked(score, const(-inf))
    weight = _without_exponential(body, score)
    if weight is None or not {*asked} <= {*kept}:
        return None
    left_out = [p for p in kept if p not in asked]
    return where(reduce(and_, left_out), weight, const(0.0)) if left_out else weight


def _unmasked(x: Term, absent: Term) -> tuple[list[Term], Term]:
    """The conditions under which an element is there, and what it is then."""
    if x.op == "where" and x.args[2] is absent:
        return operands(x.args[0], "and"), x.args[1]
    return [], x


def _without_exponential(x: Term, s: Term) -> Term | None:
    """w of x = w · exp(s), which is a factor, a part of an exponent, in a dividend or a choice; None if it is not."""
    if x.op == "exp":
        return _without_addend(x.args[0], s)
    if x.op == "mul":
        for number, other in ((0, x.args[1]), (1, x.args[0])):
            weight = _without_exponential(x.args[number], s)
            if weight is not None:
                return other if weight is const(1.0) else other * weight if number else weight * other
        return None
    place = {"div": 0, "where": 1}.get(x.op)
    if place is None or (x.op == "where" and x.args[2] is not const(0.0)):
        return None
    weight = _without_exponential(x.args[place], s)
    return None if weight is None else make(x.op, (*x.args[:place], weight, *x.args[place + 1 :]))


def _without_addend(exponent: Term, s: Term) -> Term | None:
    """w of exp(exponent) = w · exp(s); None where s is no addend."""
    if exponent is s:
        return const(1.0)
    rest = [a for a in exponent.args if a is not s] if exponent.op == "add" else []
    return exp(rest[0]) if len(rest) == 1 else None


def exponential_parts(node: Term) -> tuple[Term, Term | None] | None:
    """s and w of Σ_j exp(s) · w; where the terms are masked, s is -∞ there. w is None for Σ_j exp(s)."""
    if node.op != "reduce" or node.attrs[0] != "sum":
        return None
    body = node.args[0]
    kept = body.args[0] if body.op == "where" and body.args[2] is const(0.0) else None
    parts = factors(body if kept is None else body.args[1])
    powers = [f for f in parts if f.op == "exp"]
    if len(powers) != 1:
        return None
    s = powers[0].args[0]
    weight = None
    for part in parts:
        if part is not powers[0]:
            weight = part if weight is None else make("mul", (weight, part))
    return (s if kept is None else where(kept, s, const(-inf))), weight


# Values by row --------------------------------------------------------------------------------------------------------


LOGICAL = ("and", "or", "not")


def row_values(
    results: Mapping[R, Normaliser], laws: Normaliser, order: Sequence[Dim]
) -> dict[Term, tuple[Term, Term]]:
    """Values by row that the forward as written computes, by the form that a gradient has for them.

    Each comes behind its form without shifts.
    """
    found: dict[Term, tuple[Term, Term]] = {}
    for result, free in results.items():
        for node in subterms(result.term):
            if node.dtype in (*FLOATS, "bool") and is_by_row(node, order) and holds_long_sum(node):
                form = free.normal(node)
                found.setdefault(laws.normal(form), (form, node))
    return found


def rows_computed_again(
    gradients: Iterable[Term], rows: Mapping[Term, tuple[Term, Term]], laws: Normaliser
) -> dict[Term, Term]:
    """The largest values by row that stand in gradients, there perhaps with other names of dims, each with its form.

    rows: as `row_values` has them. laws: those of the gradients. Truth values that a gradient makes of several others
    are one value, so that a kernel reads one truth value for a row instead of several.
    """
    known = {canonical_names(form): value for form, value in rows.items()}
    found: dict[Term, Term] = {}
    stack, seen = list(gradients), set()
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        value = _row_value(node, known, laws) if node.dtype in (*FLOATS, "bool") else None
        if value is not None and not _is_read(node):
            found[value[1]] = value[0]
        else:
            stack.extend(node.args)
    return found


def _row_value(node: Term, known: Mapping[Term, tuple[Term, Term]], laws: Normaliser) -> tuple[Term, Term] | None:
    """The form and the forward's node of a value by row, or of truth values that are made of such; None for others."""
    value = known.get(canonical_names(node))
    if value is not None or node.op not in LOGICAL:
        return value
    parts = [part for a in node.args if (part := _row_value(a, known, laws)) is not None]
    if len(parts) < len(node.args):
        return None
    form, whole = (make(node.op, tuple(part[number] for part in parts)) for number in (0, 1))
    return (form, whole) if canonical_names(laws.normal(form)) is canonical_names(node) else None


def _is_read(node: Term) -> bool:
    """Whether a value is in memory already, perhaps rounded: it is computed from nothing."""
    return node.op == "load" or (node.op == "cast" and node.args[0].op == "load")

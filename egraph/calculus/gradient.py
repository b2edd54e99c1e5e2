"""Gradients of results by the tensors that they read, in terms of inputs, cotangents and what the forward saves.

Equal functions have equal derivatives, so the form that is differentiated may be chosen: one without a shift by a
maximum. What the forward saves is said as equations, such as exp(L) = Σ_j exp(s). Laws bring every cotangent to a form
that reads the saved values, and no law here knows what attention is. Example: for softmax(q · k) · v, the gradient of v
is Σ_i g[i, e] · exp(s - L[i]).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ..derivation.certificate import Derivation
from ..derivation.derive import replay
from ..derivation.normalize import Normaliser
from ..rewrite.rule import Rule
from ..terms.ops import cast, exp
from ..terms.term import FLOATS, Dim, Term
from ..terms.traversal import subterms, tensors
from .gradient_certificate import GradientCertificate
from .partials import NotDifferentiable
from .reverse_mode import Gradient, Result, differentiated
from .saved import (
    Bounded,
    Logarithm,
    Mean,
    Saved,
    arranged,
    as_dtype,
    logarithms,
    means,
    multiplies_mask,
    read,
    row_values,
    rows_computed_again,
    saved_value,
)


@dataclass(frozen=True)
class Laws:
    """normal: what brings the captured terms to normal form. shift_free: takes shifts out of all exponents of it.
    gather: brings a cotangent's quotients and exponentials together. weights_first: in what is computed, multiplies by
    exponentials before factors that may be as large as a mask's number: 0 · ∞ is NaN."""

    normal: Sequence[Rule]
    shift_free: Sequence[Rule]
    gather: Sequence[Rule]
    weights_first: Sequence[Rule] = ()


@dataclass(frozen=True)
class Gradients:
    """The gradients in order of `wanted`, what the forward has to save for them, and the certificate.

    equations: between what is saved and forms without shifts, the premises of the certificate.
    """

    gradients: tuple[Gradient, ...]
    saved: tuple[Saved, ...]
    certificate: GradientCertificate

    @property
    def equations(self) -> tuple[Rule, ...]:
        """The premises of the certificate."""
        return self.certificate.premises


def gradients(results: Sequence[Result], wanted: Sequence[str], laws: Laws, without: Collection[str] = ()) -> Gradients:
    """The gradients of all wanted tensors. Raises NotDifferentiable, with what stands in the way.

    without: operations that are not to be differentiated, as their derivative is another one in the program.
    """
    free = Normaliser((*laws.normal, *laws.shift_free))
    forms = {result: free.normal(result.term) for result in results}
    _require_none(without, forms.values(), wanted)
    order = tuple(dict.fromkeys(dim for result in results for dim in result.order))
    sums = list(logarithms(results, free, order))
    known = _equations(laws, sums, forms, order)
    stored = [((Saved(r.tensor, r.term, r.order),), *_as_stored(forms[r], r)) for r in results]
    laws_now = known.with_all(stored)
    found, joints, chains = _with_chains(forms, wanted, laws_now)
    again = rows_computed_again([g.term for g in found], row_values(results, free, laws_now.normaliser(), order))
    if again:
        for number, term in enumerate(again):
            saved = saved_value(f"row{number or ''}", term, arranged(term, order))
            known.add((saved,), free.normal(term), as_dtype(saved, term.dtype))
        laws_now = known.with_all(stored)
        found, joints, chains = _with_chains(forms, wanted, laws_now)
    Bounded(sums, results, known.normaliser()).check(joints)
    names = {tensor.name for gradient in found for tensor in tensors(gradient.term)}
    kept = tuple(s for s in laws_now.saved if s.tensor.name in names)
    shown = tuple(replay(result.term, free) for result in results)
    return Gradients(tuple(found), kept, GradientCertificate(shown, chains(), tuple(laws_now.rules)))


def _equations(laws: Laws, sums: Sequence[Logarithm], forms: Mapping[Result, Term], order: Sequence[Dim]) -> _Equations:
    """What logarithms of sums, and means of their exponentials, are in forms without shifts."""
    known = _Equations(laws)
    for one in sums:
        known.add(one.parts, one.total, exp(one.read()))
    for number, mean in enumerate(means(forms.values(), sums, order)):
        known.add(*_mean_equation(number, mean, forms, order))
    return known


def _with_chains(
    forms: Mapping[Result, Term], wanted: Sequence[str], equations: _Equations
) -> tuple[list[Gradient], list[Term], Callable[[], tuple[Derivation, ...]]]:
    """The gradients, the cotangents of all loads, and what makes the chain of every joint."""
    laws = equations.normaliser()
    last = Normaliser(equations.laws.weights_first if any(map(multiplies_mask, forms.values())) else ())
    asked: dict[Term, None] = {}

    def simplified(term: Term) -> Term:
        asked[term] = None
        return last.normal(laws.normal(term))

    found, joints = differentiated(forms, wanted, simplified)
    return found, joints, lambda: tuple(replay(term, laws).then(replay(laws.normal(term), last)) for term in asked)


def _require_none(operations: Collection[str], forms: Iterable[Term], wanted: Collection[str]) -> None:
    """Raises NotDifferentiable if a floating operation of that kind depends on a wanted tensor."""
    for node in (n for form in forms for n in subterms(form)):
        if node.op in operations and node.dtype in FLOATS and any(t.name in wanted for t in tensors(node)):
            raise NotDifferentiable(f"{node.op} is left in the form that is differentiated")


def _mean_equation(
    number: int, mean: Mean, forms: Mapping[Result, Term], order: Sequence[Dim]
) -> tuple[tuple[Saved, ...], Term, Term]:
    """Σ_j exp(s) · w = m · exp(L): m is a result, where one is that quotient, or a value of its own."""
    divisor = exp(mean.log.read())
    for result, form in forms.items():
        held, stored = _as_stored(form, result)
        if held is mean.total / mean.log.total:
            return (Saved(result.tensor, result.term, result.order),), mean.total, stored * divisor
    saved = saved_value(f"mean{number or ''}", mean.value, arranged(mean.total, order))
    return (saved,), mean.total, as_dtype(saved, mean.total.dtype) * divisor


def _as_stored(form: Term, result: Result) -> tuple[Term, Term]:
    """What a result's tensor holds, and how it is read: the result as it was rounded when it was stored."""
    stored = read(result.tensor, result.order)
    return (form.args[0], cast(stored, form.args[0].dtype)) if form.op == "cast" else (form, stored)


class _Equations:
    """Ground laws, each in the normal form that those before it leave: inner ones come first."""

    def __init__(self, laws: Laws, rules: Sequence[Rule] = (), saved: Sequence[Saved] = ()):
        self.laws, self.rules, self.saved = laws, list(rules), list(saved)

    def normaliser(self) -> Normaliser:
        return Normaliser((*self.rules, *self.laws.normal, *self.laws.gather))

    def add(self, saved: Sequence[Saved], left: Term, right: Term) -> None:
        left = self.normaliser().normal(left)
        if left.op not in ("load", "const", "cast"):
            name = f"saved_{saved[-1].tensor.name}"
            self.rules.append(Rule(name, name.replace("_", " "), left, right, ()))
            self.saved.extend(saved)

    def with_all(self, more: Iterable[tuple[Sequence[Saved], Term, Term]]) -> _Equations:
        """These equations, and more behind them."""
        found = _Equations(self.laws, self.rules, self.saved)
        for saved, left, right in more:
            found.add(saved, left, right)
        return found

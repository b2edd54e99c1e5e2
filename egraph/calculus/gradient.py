"""Gradients of results by the tensors that they read, in terms of inputs, cotangents and what the forward saves.

Equal functions have equal derivatives, so the form that is differentiated may be chosen: one without a shift by a
maximum. What the forward saves is said as equations, such as exp(L) = Σ_j exp(s). Laws bring every cotangent to a form
that reads the saved values, and no law here knows what attention is. Example: for softmax(q · k) · v, the gradient of v
is Σ_i g[i, e] · exp(s - L[i]).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from ..derivation.certificate import Derivation
from ..derivation.derive import replay
from ..derivation.normalize import Normaliser
from ..rewrite.rule import Rule
from ..terms.ops import exp
from ..terms.term import Dim, Term
from ..terms.traversal import subterms, tensors
from .derivative_certificate import DerivativeCertificate, in_full
from .equations import Equations, Laws, as_stored, require_none
from .reverse_mode import Derivative, Result, differentiated
from .saved import (
    Bounded,
    Logarithm,
    Mean,
    Saved,
    Unbounded,
    arranged,
    as_dtype,
    logarithms,
    means,
    multiplies_mask,
    saved_value,
)


@dataclass(frozen=True)
class Gradients:
    """The gradients in order of `wanted`, what the forward has to save for them, and the certificate.

    equations: between what is saved and forms without shifts, the premises of the certificate.
    """

    gradients: tuple[Derivative, ...]
    saved: tuple[Saved, ...]
    certificate: DerivativeCertificate

    @property
    def equations(self) -> tuple[Rule, ...]:
        """The premises of the certificate."""
        return self.certificate.premises


def gradients(results: Sequence[Result], wanted: Sequence[str], laws: Laws, without: Collection[str] = ()) -> Gradients:
    """The gradients of all wanted tensors. Raises NotDifferentiable, with what stands in the way.

    without: operations that are not to be differentiated, as their derivative is another one in the program.
    """
    plain, normalised = (Normaliser((*laws.normal, *more)) for more in (laws.shift_free, laws.normalised))
    derived = lambda forms, apart=False: _of_forms(forms, wanted, laws, without, apart)
    try:
        return derived(dict.fromkeys(results, plain))
    except Unbounded:
        if not laws.normalised:
            raise
    alone = results if len(results) > 1 else ()
    bounded = {result for result in alone if _is_bounded(derived, {result: plain})}
    # What cancels in a row's gradients cancels only if its weights sum to 1. A logarithm that is rounded with its shift
    # is off by 2^-24 of the largest score.
    return derived({result: plain if result in bounded else normalised for result in results}, apart=True)


def _is_bounded(
    derived: Callable[[Mapping[Result, Normaliser]], Gradients], forms: Mapping[Result, Normaliser]
) -> bool:
    try:
        derived(forms)
    except Unbounded:
        return False
    return True


def _of_forms(
    free: Mapping[Result, Normaliser], wanted: Sequence[str], laws: Laws, without: Collection[str], apart: bool
) -> Gradients:
    """The gradients, with each result in the form without shifts that its normaliser makes. apart: as `logarithms`."""
    results = tuple(free)
    forms = {result: normaliser.normal(result.term) for result, normaliser in free.items()}
    require_none(without, forms.values(), wanted)
    order = tuple(dict.fromkeys(dim for result in results for dim in result.order))
    sums = list(logarithms(free, order, apart))
    known = _equations(laws, sums, forms, order)
    stored = [((Saved(r.tensor, r.term, r.order),), *as_stored(forms[r], r)) for r in results]
    laws_now = known.with_all(stored)
    found, joints, chains = _with_chains(forms, wanted, laws_now)
    order = tuple(dict.fromkeys((*order, *(dim for one in sums for part in one.parts for dim in part.order))))
    if known.add_rows([g.term for g in found], free, laws_now.normaliser(), order):
        laws_now = known.with_all(stored)
        found, joints, chains = _with_chains(forms, wanted, laws_now)
    Bounded(sums, results, known.normaliser()).check(joints)
    names = {tensor.name for gradient in found for tensor in tensors(gradient.term)}
    kept = tuple(s for s in laws_now.saved if s.tensor.name in names)
    shown = tuple(replay(result.term, normaliser) for result, normaliser in free.items())
    certificate = DerivativeCertificate(shown, chains(), tuple(laws_now.rules), tuple(laws_now.saved))
    return Gradients(tuple(found), kept, certificate)


def _equations(laws: Laws, sums: Sequence[Logarithm], forms: Mapping[Result, Term], order: Sequence[Dim]) -> Equations:
    """What logarithms of sums, and means of their exponentials, are in forms without shifts."""
    known = Equations(laws)
    for one in sums:
        known.add(one.parts, one.total, exp(one.read()))
    for number, mean in enumerate(means(forms.values(), sums, order)):
        known.add(*_mean_equation(number, _without_overflow(mean, known, sums, forms), forms, order))
    return known


def _without_overflow(mean: Mean, known: Equations, sums: Sequence[Logarithm], forms: Mapping[Result, Term]) -> Mean:
    """The mean with weights whose exponentials are shifted as the forward shifts them.

    Example: weights times 0.1 < exp(s) / Σ_j exp(s), which compares exp(s - L) instead. Raises NotDifferentiable.
    """
    if not any(node.op == "exp" for node in subterms(mean.weight)):
        return mean
    laws = known.normaliser()
    weight = laws.normal(mean.weight)
    Bounded(sums, forms, laws).check([weight])
    return replace(mean, weight=in_full(weight, known.saved))


def _with_chains(
    forms: Mapping[Result, Term], wanted: Sequence[str], equations: Equations
) -> tuple[list[Derivative], list[Term], Callable[[], tuple[Derivation, ...]]]:
    """The gradients, the cotangents of all loads, and what makes the chain of every joint."""
    laws = equations.normaliser()
    last = Normaliser(equations.laws.weights_first if any(map(multiplies_mask, forms.values())) else ())
    asked: dict[Term, None] = {}

    def simplified(term: Term) -> Term:
        asked[term] = None
        return last.normal(laws.normal(term))

    found, joints = differentiated(forms, wanted, simplified)
    return found, joints, lambda: tuple(replay(term, laws).then(replay(laws.normal(term), last)) for term in asked)


def _mean_equation(
    number: int, mean: Mean, forms: Mapping[Result, Term], order: Sequence[Dim]
) -> tuple[tuple[Saved, ...], Term, Term]:
    """Σ_j exp(s) · w = m · exp(L): m is a result, where one is that quotient, or a value of its own."""
    divisor = exp(mean.log.read())
    for result, form in forms.items():
        held, stored = as_stored(form, result)
        if held is mean.total / mean.log.total:
            return (Saved(result.tensor, result.term, result.order),), mean.total, stored * divisor
    kind = mean.kind(result.tensor for result in forms)
    saved = saved_value(f"mean{number or ''}", mean.value, arranged(mean.total, order), full=kind)
    return (saved,), mean.total, as_dtype(saved, mean.total.dtype) * divisor

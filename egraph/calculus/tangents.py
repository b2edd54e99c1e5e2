"""Tangents of results: what a forward computes beside them, for given tangents of the tensors that it reads.

The form that is differentiated has no shift by a maximum, and named values stand for its sums of exponentials, as for
gradients. What computes the named values replaces them at the end, so nothing is saved: a tangent is one more result of
the same loops. Example: softmax(q · k) · v with the tangent v' of v has the tangent Σ_j softmax(q · k) · v'.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from ..derivation.derive import replay
from ..derivation.normalize import Normaliser
from ..terms.ops import cast, exp
from ..terms.term import Dim, Tensor, Term
from .derivative_certificate import DerivativeCertificate, in_full
from .equations import Equations, Laws, require_none
from .forward_mode import tangents_of
from .reverse_mode import Result
from .saved import (
    Bounded,
    Logarithm,
    Saved,
    arranged,
    as_dtype,
    logarithms,
    means,
    read,
    saved_value,
)


@dataclass(frozen=True)
class Tangents:
    """The tangent of each result, None where it has none, and the certificate."""

    terms: tuple[Term | None, ...]
    certificate: DerivativeCertificate


def tangents(
    results: Sequence[Result], given: Mapping[str, Tensor], laws: Laws, without: Collection[str] = ()
) -> Tangents:
    """The tangents of all results. Raises NotDifferentiable, with what stands in the way.

    given: tensors of tangents, by the name of the tensor that each is of. without: operations that are not to be
    differentiated, as their derivative is another one in the program.
    """
    free = Normaliser((*laws.normal, *laws.shift_free))
    forms = {result: free.normal(result.term) for result in results}
    require_none(without, forms.values(), given)
    order = tuple(dict.fromkeys(dim for result in results for dim in result.order))
    raw = tangents_of(forms.values(), given)
    sums = list(logarithms(dict.fromkeys(results, free), order))
    known, weights = _equations(laws, sums, [*forms.values(), *raw.values()], order)
    for result, form in forms.items():
        known.add(*_value(result, form))
    found = _normal(raw, laws_now := known.normaliser())
    if known.add_rows(found.values(), dict.fromkeys(results, free), laws_now, order):
        found = _normal(raw, laws_now := known.normaliser())
    Bounded(sums, results, known.normaliser()).check([*found.values(), *weights])
    chains = tuple(replay(term, laws_now) for term in raw.values())
    shown = tuple(replay(result.term, free) for result in results)
    certificate = DerivativeCertificate(shown, chains, tuple(known.rules), tuple(known.saved))
    terms = tuple(in_full(found[form], known.saved) if form in found else None for form in forms.values())
    return Tangents(terms, certificate)


def _normal(raw: Mapping[Term, Term], laws: Normaliser) -> dict[Term, Term]:
    """The tangents by the equations and the laws, by form."""
    return {form: laws.normal(term) for form, term in raw.items()}


def _equations(
    laws: Laws, sums: Sequence[Logarithm], terms: Sequence[Term], order: Sequence[Dim]
) -> tuple[Equations, list[Term]]:
    """What logarithms of sums, and means of their exponentials, are in forms without shifts; and the means' weights."""
    known = Equations(laws)
    plain = known.normaliser()
    for one in sums:
        known.add(one.parts, one.total, exp(one.read()))
    normal_sums = [replace(one, total=plain.normal(one.total)) for one in sums]
    weights: list[Term] = []
    for number, mean in enumerate(means([plain.normal(term) for term in terms], normal_sums, order)):
        value = saved_value(f"mean{number or ''}", mean.value, arranged(mean.total, order))
        known.add((value,), mean.total, as_dtype(value, mean.total.dtype) * exp(mean.log.read()))
        weights.append(mean.weight)
    return known, weights


def _value(result: Result, form: Term) -> tuple[tuple[Saved], Term, Term]:
    """The equation of a result's own value, before it is rounded to be stored."""
    term = result.term
    if form.op == "cast":
        form = form.args[0]
        term = term.args[0] if term.op == "cast" else cast(term, form.dtype)
    tensor = replace(result.tensor, name=f"value_{result.tensor.name}", dtype=term.dtype)
    return (Saved(tensor, term, result.order),), form, read(tensor, result.order)

"""The certificate of derivatives: chains of proved rules, and reverse or forward mode done again between them.

Each result goes to the form that is differentiated, and each joint of reverse mode, or each tangent, to its normal
form, by a checked derivation. Differentiation itself and the transposes of loads are computed again from the table of
partials. What named values are is a premise: an equation with a name. Example:
`check_gradients(found.certificate, results, wanted, rules)`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ..derivation.certificate import CertificateError, Derivation, check
from ..rewrite.rule import Rule
from ..terms.ops import cast
from ..terms.printing import show
from ..terms.term import Tensor, Term
from ..terms.traversal import substitute, subterms
from .forward_mode import tangents_of
from .reverse_mode import Derivative, Result, differentiated
from .saved import Saved, read


@dataclass(frozen=True)
class DerivativeCertificate:
    """forms: from each result to what is differentiated. chains: from what differentiation gives to its normal form.

    premises: equations between named values and forms without shifts, as rules without variables. named: the values,
    those that a forward saves and its results.
    """

    forms: tuple[Derivation, ...]
    chains: tuple[Derivation, ...]
    premises: tuple[Rule, ...]
    named: tuple[Saved, ...]

    @property
    def rules(self) -> tuple[str, ...]:
        """Names of the rules used, in order of first use; premises among them."""
        return tuple(dict.fromkeys(name for d in (*self.forms, *self.chains) for name in d.rules))


def check_gradients(
    certificate: DerivativeCertificate, results: Sequence[Result], wanted: Sequence[str], rules: Mapping[str, Rule]
) -> list[Derivative]:
    """The gradients that the certificate shows, in the order of `wanted`.

    rules: the laws that may be used, by name. Raises CertificateError for a chain that is none, for a premise with a
    variable or the name of a law, and where reverse mode meets a joint that no chain starts from.
    """
    forms, goals = _checked_chains(certificate, results, rules)

    def simplified(term: Term) -> Term:
        if term not in goals:
            raise CertificateError(0, f"a joint of reverse mode has no chain: {show(term)}")
        return goals[term]

    return differentiated(forms, wanted, simplified)[0]


def check_tangents(
    certificate: DerivativeCertificate,
    results: Sequence[Result],
    given: Mapping[str, Tensor],
    rules: Mapping[str, Rule],
) -> tuple[Term | None, ...]:
    """The tangents that the certificate shows, one for each result; None where it has none.

    given: tensors of tangents, by the name of the tensor that each is of. Raises CertificateError as `check_gradients`
    does, and for a tangent that no chain starts from.
    """
    forms, goals = _checked_chains(certificate, results, rules)
    found = tangents_of(forms.values(), given)
    if missing := [term for term in found.values() if term not in goals]:
        raise CertificateError(0, f"the tangent of a result has no chain: {show(missing[0])}")
    normal = {form: goals[term] for form, term in found.items()}
    return tuple(in_full(normal[form], certificate.named) if form in normal else None for form in forms.values())


def _checked_chains(
    certificate: DerivativeCertificate, results: Sequence[Result], rules: Mapping[str, Rule]
) -> tuple[dict[Result, Term], dict[Term, Term]]:
    """The form of each result, and the goal of each chain by its start. Raises CertificateError."""
    forms, chains, premises = certificate.forms, certificate.chains, certificate.premises
    for premise in premises:
        if premise.name in rules or premise.guards or _has_variable(premise.left) or _has_variable(premise.right):
            raise CertificateError(0, f"{premise.name} is no equation between saved values and terms")
    for number, form in enumerate(forms, 1):
        check_chain(f"form {number}", form, rules)
    allowed = {**rules, **{premise.name: premise for premise in premises}}
    for number, chain in enumerate(chains, 1):
        check_chain(f"chain {number}", chain, allowed)
    if [form.start for form in forms] != [result.term for result in results]:
        raise CertificateError(0, "the chains of the forms do not start from the results")
    found = {result: form.goal for result, form in zip(results, forms, strict=True)}
    return found, {chain.start: chain.goal for chain in chains}


def check_chain(name: str, chain: Derivation, rules: Mapping[str, Rule]) -> None:
    """Raises CertificateError, with the name of the chain, for the first step that is none."""
    try:
        check(chain, rules)
    except CertificateError as error:
        raise CertificateError(0, f"{name}, {error}") from error


def _has_variable(term: Term) -> bool:
    return any(node.op == "var" for node in subterms(term))


def in_full(term: Term, named: Iterable[Saved]) -> Term:
    """The term with what computes them in place of the named values. They read none of each other."""
    return substitute(term, {read(value.tensor, value.order): _computed(value) for value in named})


def _computed(value: Saved) -> Term:
    return value.term if value.term.dtype == value.tensor.dtype else cast(value.term, value.tensor.dtype)

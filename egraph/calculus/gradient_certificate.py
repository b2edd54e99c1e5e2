"""The certificate of gradients: chains of proved rules, and reverse mode done again between them.

Each result goes to the form that is differentiated, and each joint to its normal form, by a checked derivation.
Differentiation itself and the transposes of loads are computed again from the table of partials. What the forward
saves is a premise: an equation with a name. Example: `check_gradients(found.certificate, results, wanted, rules)`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..derivation.certificate import CertificateError, Derivation, check
from ..rewrite.rule import Rule
from ..terms.term import Term
from ..terms.traversal import subterms
from .reverse_mode import Gradient, Result, differentiated


@dataclass(frozen=True)
class GradientCertificate:
    """forms: from each result to what is differentiated. joints: from what reverse mode gives to its normal form.

    premises: equations between what the forward saves and forms without shifts, as rules without variables.
    """

    forms: tuple[Derivation, ...]
    joints: tuple[Derivation, ...]
    premises: tuple[Rule, ...]

    @property
    def rules(self) -> tuple[str, ...]:
        """Names of the rules used, in order of first use; premises among them."""
        return tuple(dict.fromkeys(name for d in (*self.forms, *self.joints) for name in d.rules))


def check_gradients(
    certificate: GradientCertificate, results: Sequence[Result], wanted: Sequence[str], rules: Mapping[str, Rule]
) -> list[Gradient]:
    """The gradients that the certificate shows, in the order of `wanted`.

    rules: the laws that may be used, by name. Raises CertificateError for a chain that is none, for a premise with a
    variable or the name of a law, and where reverse mode meets a joint that no chain starts from.
    """
    forms, goals = checked_chains(certificate.forms, certificate.joints, certificate.premises, results, rules)

    def simplified(term: Term) -> Term:
        if term not in goals:
            raise CertificateError(0, "a joint of reverse mode has no chain")
        return goals[term]

    return differentiated(forms, wanted, simplified)[0]


def checked_chains(
    forms: Sequence[Derivation],
    joints: Sequence[Derivation],
    premises: Sequence[Rule],
    results: Sequence[Result],
    rules: Mapping[str, Rule],
) -> tuple[dict[Result, Term], dict[Term, Term]]:
    """The form of each result, and the normal form of each joint, as the chains show them. Raises CertificateError."""
    for premise in premises:
        if premise.name in rules or premise.guards or _has_variable(premise.left) or _has_variable(premise.right):
            raise CertificateError(0, f"{premise.name} is no equation between saved values and terms")
    for form in forms:
        check(form, rules)
    allowed = {**rules, **{premise.name: premise for premise in premises}}
    for joint in joints:
        check(joint, allowed)
    if [form.start for form in forms] != [result.term for result in results]:
        raise CertificateError(0, "the chains of the forms do not start from the results")
    found = {result: form.goal for result, form in zip(results, forms, strict=True)}
    return found, {joint.start: joint.goal for joint in joints}


def _has_variable(term: Term) -> bool:
    return any(node.op == "var" for node in subterms(term))

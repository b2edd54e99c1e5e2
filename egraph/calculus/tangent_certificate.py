"""The certificate of tangents: chains of proved rules, and forward mode done again between them.

Each result goes to the form that is differentiated, and each tangent to its normal form, by a checked derivation.
Differentiation itself is computed again from the table of partials. What the named values are is a premise: an equation
with a name. Example: `check_tangents(found.certificate, results, given, rules)`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ..derivation.certificate import CertificateError, Derivation
from ..rewrite.rule import Rule
from ..terms.ops import cast
from ..terms.term import Tensor, Term
from ..terms.traversal import substitute
from .forward_mode import tangents_of
from .gradient_certificate import checked_chains
from .reverse_mode import Result
from .saved import Saved, read


@dataclass(frozen=True)
class TangentCertificate:
    """forms: from each result to what is differentiated. tangents: from what forward mode gives to its normal form.

    premises: equations between named values and forms without shifts, as rules without variables. named: the values.
    """

    forms: tuple[Derivation, ...]
    tangents: tuple[Derivation, ...]
    premises: tuple[Rule, ...]
    named: tuple[Saved, ...]

    @property
    def rules(self) -> tuple[str, ...]:
        """Names of the rules used, in order of first use; premises among them."""
        return tuple(dict.fromkeys(name for d in (*self.forms, *self.tangents) for name in d.rules))


def check_tangents(
    certificate: TangentCertificate, results: Sequence[Result], given: Mapping[str, Tensor], rules: Mapping[str, Rule]
) -> tuple[Term | None, ...]:
    """The tangents that the certificate shows, one for each result; None where it has none.

    rules: the laws that may be used, by name. Raises CertificateError for a chain that is none, for a premise with a
    variable or the name of a law, and for a tangent that no chain starts from.
    """
    chains = certificate.forms, certificate.tangents
    forms, goals = checked_chains(*chains, certificate.premises, results, rules)
    found = tangents_of(forms.values(), given)
    if missing := [term for term in found.values() if term not in goals]:
        raise CertificateError(0, f"{len(missing)} tangents have no chain")
    normal = {form: goals[term] for form, term in found.items()}
    return tuple(in_full(normal[form], certificate.named) if form in normal else None for form in forms.values())


def in_full(term: Term, named: Iterable[Saved]) -> Term:
    """The term with what computes them in place of the named values. They read none of each other."""
    return substitute(term, {read(value.tensor, value.order): _computed(value) for value in named})


def _computed(value: Saved) -> Term:
    return value.term if value.term.dtype == value.tensor.dtype else cast(value.term, value.tensor.dtype)

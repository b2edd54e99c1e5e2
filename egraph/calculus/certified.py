"""Derivatives with all that their certificate is about, so that it can be written down and checked alone.

Invariant: what `check` accepts is shown from the captured results: by chains of rules, by differentiation from the
table of partials, and by equations between named values of which `proofs` says why they hold. Example: the gradients of
softmax(q · k) · v with the logarithms that the forward saves, `Certified.from_json(found.to_json()).check(rules)`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..derivation.certificate import CertificateError, Derivation
from ..rewrite.rule import Rule
from ..rewrite.serialization import (
    dim_from_json,
    dim_to_json,
    from_json,
    rule_from_json,
    rule_to_json,
    tensor_from_json,
    tensor_to_json,
    to_json,
)
from ..terms.term import Dim, Tensor, Term, TermError
from ..terms.traversal import tensors
from .adjoint import rows_used
from .derivative_certificate import DerivativeCertificate, check_chain, check_gradients, check_tangents
from .equations import Laws
from .premises import PremiseProof, check_premise, prove_premise
from .reverse_mode import Derivative, Result
from .saved import Saved

GRADIENTS, TANGENTS = "gradients", "tangents"
Asked = tuple[tuple[str, Tensor | None], ...]


@dataclass(frozen=True)
class Certified:
    """Derivatives of one region.

    mode: GRADIENTS or TANGENTS. captured: from each result as it was captured to its normal form, which `results` has.
    asked: the tensors whose gradients are wanted, or those that have tangents, with these. proofs: of each premise of
    the certificate, None where there is none. shown: the derivatives.
    """

    mode: str
    captured: tuple[Derivation, ...]
    results: tuple[Result, ...]
    asked: Asked
    certificate: DerivativeCertificate
    proofs: tuple[PremiseProof | None, ...]
    shown: tuple[Derivative, ...]

    @property
    def chains(self) -> tuple[Derivation, ...]:
        """Every chain of rules."""
        proofs = (proof for proof in self.proofs if proof is not None)
        between = (chain for proof in proofs for chain in (*proof.left, *proof.right))
        return (*self.captured, *self.certificate.forms, *self.certificate.chains, *between)

    @property
    def rules(self) -> tuple[str, ...]:
        """Names of the rules used, in order of first use; no premises among them."""
        premises = {premise.name for premise in self.certificate.premises}
        return tuple(dict.fromkeys(name for chain in self.chains for name in chain.rules if name not in premises))

    @property
    def rows(self) -> Counter[str]:
        """How often a row of the table of partials is used, by operation."""
        return rows_used([form.goal for form in self.certificate.forms], {name for name, _ in self.asked})

    @property
    def unproved(self) -> tuple[Rule, ...]:
        """The premises that nothing shows."""
        pairs = zip(self.certificate.premises, self.proofs, strict=True)
        return tuple(premise for premise, proof in pairs if proof is None)

    def check(self, rules: Mapping[str, Rule]) -> None:
        """Raises CertificateError for a chain that is none, or for derivatives that are not those that are shown.

        A certificate whose check raises any error is rejected.
        """
        try:
            self._check(rules)
        except CertificateError:
            raise
        except Exception as error:
            raise CertificateError(0, f"cannot be decided: {type(error).__name__}: {error}") from error

    def _check(self, rules: Mapping[str, Rule]) -> None:
        for result, chain in zip(self.results, self.captured, strict=True):
            check_chain(f"the chain from the captured {result.tensor.name}", chain, rules)
            if chain.goal is not result.term:
                raise CertificateError(0, f"the chain from the captured {result.tensor.name} does not end at its form")
        self._check_names()
        found = _CHECKS[self.mode](self, rules)
        for one, shown in zip(found, self.shown, strict=True):
            if one != shown:
                raise CertificateError(0, f"the chains show another {self.mode[:-1]} of {one.tensor.name}")
        for premise, proof in zip(self.certificate.premises, self.proofs, strict=True):
            if proof is not None:
                check_premise(premise, proof, self.certificate.named, rules)

    def _check_names(self) -> None:
        """Raises CertificateError for a name with two meanings, or a named value that is not of the inputs alone."""
        named = self.certificate.named
        inputs = {tensor.name for chain in self.captured for tensor in tensors(chain.start)}
        given = _names(tensor for _, tensor in self.asked)
        cotangents = _names(result.cotangent for result in self.results)
        many = Counter([*inputs, *given, *cotangents, *_names(value.tensor for value in named)])
        if taken := [name for name, times in many.items() if times > 1]:
            raise CertificateError(0, f"{taken[0]} is the name of two tensors")
        results = {result.tensor.name: result.term for result in self.results}
        for value in named:
            if results.get(value.tensor.name, value.term) is not value.term:
                raise CertificateError(0, f"{value.tensor.name} is a result, and named as something else")
            if others := {*_names(tensors(value.term))} - inputs - {*given}:
                raise CertificateError(0, f"{value.tensor.name} is computed from {min(others)}, which is no input")

    def to_json(self) -> dict:
        """Everything as plain data."""
        certificate = self.certificate
        return {
            "mode": self.mode,
            "results": [
                {"captured": chain.to_json(), **_axes(result.tensor, result.order), "cotangent": _or_none(result)}
                for chain, result in zip(self.captured, self.results, strict=True)
            ],
            "asked": [[name, None if tensor is None else tensor_to_json(tensor)] for name, tensor in self.asked],
            "forms": [chain.to_json() for chain in certificate.forms],
            "chains": [chain.to_json() for chain in certificate.chains],
            "premises": [rule_to_json(premise) for premise in certificate.premises],
            "named": [{**_axes(s.tensor, s.order), "term": to_json(s.term)} for s in certificate.named],
            "proofs": [None if proof is None else _proof_to_json(proof) for proof in self.proofs],
            "shown": [{**_axes(d.tensor, d.axes), "term": to_json(d.term)} for d in self.shown],
        }

    @classmethod
    def from_json(cls, data: Any) -> Certified:
        """What `to_json` wrote. It proves nothing before `check` has passed. Raises TermError."""
        try:
            if data["mode"] not in _CHECKS:
                raise TermError(f"{data['mode']!r} is no kind of derivatives")
            captured = tuple(Derivation.from_json(written["captured"]) for written in data["results"])
            results = tuple(
                Result(chain.goal, *_read_axes(written), _read_tensor(written["cotangent"]))
                for chain, written in zip(captured, data["results"], strict=True)
            )
            certificate = DerivativeCertificate(
                tuple(map(Derivation.from_json, data["forms"])),
                tuple(map(Derivation.from_json, data["chains"])),
                tuple(map(rule_from_json, data["premises"])),
                tuple(map(_read_named, data["named"])),
            )
            proofs = tuple(None if proof is None else _proof_from_json(proof) for proof in data["proofs"])
            shown = tuple(map(_read_shown, data["shown"]))
            asked = tuple((str(name), _read_tensor(tensor)) for name, tensor in data["asked"])
            return cls(data["mode"], captured, results, asked, certificate, proofs, shown)
        except TermError:
            raise
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise TermError(f"not the text of a certificate of derivatives: {error}") from error


def certified(
    mode: str,
    captured: Sequence[Derivation],
    results: Sequence[Result],
    asked: Asked,
    certificate: DerivativeCertificate,
    shown: Sequence[Derivative],
    laws: Laws,
) -> Certified:
    """The derivatives with their certificate, without premises that no chain uses. laws: what proves the others."""
    used = {*certificate.rules}
    premises = tuple(premise for premise in certificate.premises if premise.name in used)
    sides = (side for premise in premises for side in (premise.left, premise.right))
    read = {tensor.name for side in sides for tensor in tensors(side)}
    named = tuple(value for value in certificate.named if value.tensor.name in read)
    proofs = tuple(prove_premise(premise, named, laws) for premise in premises)
    kept = replace(certificate, premises=premises, named=named)
    return Certified(mode, tuple(captured), tuple(results), asked, kept, proofs, tuple(shown))


def _gradients(found: Certified, rules: Mapping[str, Rule]) -> tuple[Derivative, ...]:
    return tuple(check_gradients(found.certificate, found.results, [name for name, _ in found.asked], rules))


def _tangents(found: Certified, rules: Mapping[str, Rule]) -> tuple[Derivative, ...]:
    given = {name: tensor for name, tensor in found.asked if tensor is not None}
    return of_results(check_tangents(found.certificate, found.results, given, rules), found.results)


def of_results(terms: Sequence[Term | None], results: Sequence[Result]) -> tuple[Derivative, ...]:
    """The tangents of those results that have one."""
    pairs = zip(terms, results, strict=True)
    return tuple(Derivative(result.tensor, term, result.order) for term, result in pairs if term is not None)


_CHECKS: dict[str, Callable[[Certified, Mapping[str, Rule]], tuple[Derivative, ...]]] = {
    GRADIENTS: _gradients,
    TANGENTS: _tangents,
}


def _names(found: Iterable[Tensor | None]) -> list[str]:
    return [tensor.name for tensor in found if tensor is not None]


def _axes(tensor: Tensor, dims: Sequence[Dim]) -> dict:
    return {"tensor": tensor_to_json(tensor), "dims": [dim_to_json(dim) for dim in dims]}


def _read_axes(data: Any) -> tuple[Tensor, tuple[Dim, ...]]:
    return tensor_from_json(data["tensor"]), tuple(map(dim_from_json, data["dims"]))


def _or_none(result: Result) -> dict | None:
    return None if result.cotangent is None else tensor_to_json(result.cotangent)


def _read_named(data: Any) -> Saved:
    tensor, dims = _read_axes(data)
    return Saved(tensor, from_json(data["term"]), dims)


def _read_shown(data: Any) -> Derivative:
    tensor, dims = _read_axes(data)
    return Derivative(tensor, from_json(data["term"]), dims)


def _read_tensor(data: Any) -> Tensor | None:
    return None if data is None else tensor_from_json(data)


def _proof_to_json(proof: PremiseProof) -> dict:
    return {
        "left": [chain.to_json() for chain in proof.left],
        "right": [chain.to_json() for chain in proof.right],
    }


def _proof_from_json(data: Any) -> PremiseProof:
    left, right = (tuple(map(Derivation.from_json, data[side])) for side in ("left", "right"))
    return PremiseProof(left, right)

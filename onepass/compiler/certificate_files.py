"""Certificates as files: `explain --certificate` writes what a report derived, `verify` checks it again.

A file holds, per region, the chain of steps and those of its rules that are not shipped; of derivatives, what
egraph/calculus/certified.py writes. Checking needs the rules, the checker of chains and the table of partials: no
torch, no e-graph, nothing of the search. Example: `print(*verify("certificate.json"))`.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path

from ..egraph.calculus.certified import Certified
from ..egraph.calculus.partials import written
from ..egraph.derivation.certificate import Derivation, check
from ..egraph.rewrite.rule import Rule
from ..egraph.rewrite.serialization import rule_from_json, rule_to_json, statement
from ..egraph.terms.printing import show, show_where
from ..egraph.terms.term import Term
from ..errors import OnepassError
from ..report.records import CERTIFICATE_FORMAT, Report
from ..rules import ALL
from .assumptions import assumptions

MOST_BYTES = 64 << 20  # of a file that is read


class CertificateFileError(OnepassError, ValueError):
    """A file that is no certificate, or one whose rule has the name of a shipped law and says something else."""


@dataclass(frozen=True)
class Checked:
    """One region of a file whose chain holds. `foreign` are the rules that the file brought: checked as steps only.

    of: what it is of, where the region's report does not say it: a value that is saved.
    """

    places: tuple[str, ...]
    derivation: Derivation
    rules: Mapping[str, Rule]
    foreign: tuple[Rule, ...]
    of: str = ""

    def __str__(self) -> str:
        lines = [_at(self.places) + (f": {self.of}" if self.of else "")]
        lines.append(self.derivation.explained({name: self.rules[name].law for name in self.derivation.rules}))
        lines += [f"assumes  {a}" for a in assumptions(self.derivation, self.rules)]
        lines += [f"relies on a law that is not onepass's: {rule}" for rule in self.foreign]
        return "\n".join([*lines, f"checked  {len(self.derivation.steps)} steps"])


@dataclass(frozen=True)
class CheckedDerivatives:
    """Derivatives of one region of a file, whose certificate holds.

    alone: names of results that no other entry of the file is about.
    """

    places: tuple[str, ...]
    found: Certified
    rules: Mapping[str, Rule]
    alone: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        found, certificate = self.found, self.found.certificate
        laws = {name: rule.law for name, rule in self.rules.items()}
        laws |= {premise.name: _equation(premise) for premise in certificate.premises}
        yield f"{_at(self.places)}: {found.mode} of {', '.join(d.tensor.name for d in found.shown) or 'nothing'}"
        yield from _chains("what is differentiated", certificate.forms, laws)
        yield from (f"row  {written(op)} ({times} times)" for op, times in sorted(found.rows.items()))
        yield from (f"named  {value.tensor.name} = {show_where(value.term)}" for value in certificate.named)
        yield from _chains("what differentiation gives", certificate.chains, laws)
        yield from (f"{found.mode[:-1]} of {d.tensor.name} = {show_where(d.term)}" for d in found.shown)
        yield from (f"premise  {line}" for line in equations(found))
        yield from (f"assumes  {sentence}" for sentence in assumed(found, self.rules))
        yield from (f"of a result that no other entry here is about: {name}" for name in self.alone)
        many = sum(len(chain.steps) for chain in found.chains)
        yield f"checked  {many} steps in {len(found.chains)} chains, {found.rows.total()} rows"


def assumed(found: Certified, rules: Mapping[str, Rule]) -> tuple[str, ...]:
    """What the chains of derivatives assume of values. rules: the laws, by name."""
    known = {**rules, **{premise.name: premise for premise in found.certificate.premises}}
    return tuple(dict.fromkeys(sentence for chain in found.chains for sentence in assumptions(chain, known)))


def equations(found: Certified) -> list[str]:
    """The equations between named values and terms, and whether it is shown that they hold."""
    unproved = {premise.name for premise in found.unproved}
    said = {True: "not shown, relied on", False: "shown, for rows that keep an element"}
    return [f"{p.name}: {_equation(p)} ({said[p.name in unproved]})" for p in found.certificate.premises]


def _at(places: tuple[str, ...]) -> str:
    return f"at {', '.join(places) or '(source line unknown)'}"


def _equation(premise: Rule) -> str:
    return f"{show(premise.left)} = {show(premise.right)}"


def _chains(title: str, chains: Iterable[Derivation], laws: Mapping[str, str]) -> list[str]:
    """The chains that have steps, each under the title."""
    return [line for chain in chains if chain.steps for line in (f"{title}:", chain.explained(laws))]


def certificate(derivation: Derivation, written: Mapping, given: tuple[Rule, ...]) -> dict:
    """The data of one region: the chain as it was written, and the given rules that it uses."""
    return {"derivation": written, "rules": [rule_to_json(rule) for rule in given if rule.name in derivation.rules]}


def derivatives_certificate(found: Certified) -> dict:
    """The data of one region's derivatives."""
    return {"derivatives": found.to_json()}


def write(report: Report, path: str | PathLike) -> Path:
    """Writes the certificates of every result and of every derivative of every region of a report; the path."""
    path = Path(path)
    path.write_text(report.certificate(), encoding="utf-8")
    return path


def verify(path: str | PathLike) -> tuple[Checked | CheckedDerivatives, ...]:
    """Checks every region of a file. Its own rules are listed, never taken for proved.

    Raises CertificateFileError for what is no certificate, CertificateError for the first step that is no instance of
    its rule and for derivatives that differentiation does not give, OSError for a file that cannot be read.
    """
    if Path(path).suffix == ".py":
        instead = f"`explain {path}:FUNC --certificate PATH` writes one; a rule is checked by onepass.check(rule)"
        raise CertificateFileError(f"{path} is Python, and no certificate: {instead}")
    if (size := Path(path).stat().st_size) > MOST_BYTES:
        raise CertificateFileError(f"{path} has {size} bytes, and a certificate has at most {MOST_BYTES}")
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
        if (written := data["onepass certificate"]) != CERTIFICATE_FORMAT:
            raise CertificateFileError(f"{path} is of format {written!r}, not {CERTIFICATE_FORMAT}")
        regions = [(tuple(map(str, region["at"])), region) for region in data["regions"]]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise _no_certificate(path, error) from error
    checked = [
        (_checked_derivatives if "derivatives" in region else _checked)(path, places, region)
        for places, region in regions
    ]
    shown = {one.derivation.start for one in checked if isinstance(one, Checked)}
    return tuple(
        replace(one, alone=_alone(one, shown)) if isinstance(one, CheckedDerivatives) else one for one in checked
    )


def _alone(one: CheckedDerivatives, shown: Collection[Term]) -> tuple[str, ...]:
    """The results that derivatives are of, and that are not among the terms that the file has a form of."""
    pairs = zip(one.found.results, one.found.captured, strict=True)
    return tuple(result.tensor.name for result, chain in pairs if chain.start not in shown)


def _no_certificate(path: str | PathLike, error: Exception) -> OnepassError:
    """Whatever the file holds, the answer is that it is no certificate; an error of ours says more."""
    if isinstance(error, OnepassError):
        return error
    return CertificateFileError(f"{path} is no certificate of onepass: {type(error).__name__}: {error}")


def _checked(path: str | PathLike, places: tuple[str, ...], region: Mapping) -> Checked:
    rules = {rule.name: rule for rule in ALL}
    try:
        foreign = tuple(rule_from_json(rule) for rule in region["rules"])
        derivation = Derivation.from_json(region["derivation"])
        of = str(region.get("of", ""))
        for rule in foreign:
            if rule.name in rules and statement(rule) != statement(rules[rule.name]):
                said = f"brings a rule {rule.name!r} that is not the law of this name: {rule}"
                raise CertificateFileError(f"{path} {said}")
            rules.setdefault(rule.name, rule)
    except Exception as error:
        raise _no_certificate(path, error) from error
    check(derivation, rules)
    return Checked(places, derivation, rules, tuple(r for r in foreign if r is rules[r.name]), of)


def _checked_derivatives(path: str | PathLike, places: tuple[str, ...], region: Mapping) -> CheckedDerivatives:
    rules = {rule.name: rule for rule in ALL}
    try:
        found = Certified.from_json(region["derivatives"])
    except Exception as error:
        raise _no_certificate(path, error) from error
    found.check(rules)
    return CheckedDerivatives(places, found, rules)

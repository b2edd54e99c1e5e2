"""Certificates as files: `explain --certificate` writes what a report derived, `verify` checks it again.

A file holds, per region, the chain of steps and those of its rules that are not shipped. Checking needs the rules and
egraph/derivation/certificate.py only: no torch, no e-graph, nothing of the search.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

from ..egraph.derivation.certificate import Derivation, check
from ..egraph.rewrite.rule import Rule
from ..egraph.rewrite.serialization import rule_from_json, rule_to_json, statement
from ..errors import OnepassError
from ..report.records import Report
from ..rules import ALL
from .assumptions import assumptions

FORMAT = 1
MOST_BYTES = 64 << 20  # of a file that is read


class CertificateFileError(OnepassError, ValueError):
    """A file that is no certificate, or one whose rule has the name of a shipped law and says something else."""


@dataclass(frozen=True)
class Checked:
    """One region of a file whose chain holds. `foreign` are the rules that the file brought: checked as steps only."""

    places: tuple[str, ...]
    derivation: Derivation
    rules: Mapping[str, Rule]
    foreign: tuple[Rule, ...]

    def __str__(self) -> str:
        rules = [self.rules[name] for name in self.derivation.rules]
        lines = [f"at {', '.join(self.places) or '(source line unknown)'}"]
        lines.append(self.derivation.explained({rule.name: rule.law for rule in rules}))
        lines += [f"assumes  {a}" for a in assumptions(self.derivation, self.rules)]
        lines += [f"relies on a law that is not onepass's: {rule}" for rule in self.foreign]
        return "\n".join([*lines, f"checked  {len(self.derivation.steps)} steps"])


def certificate(derivation: Derivation, written: Mapping, given: tuple[Rule, ...]) -> dict:
    """The data of one region: the chain as it was written, and the given rules that it uses."""
    return {"derivation": written, "rules": [rule_to_json(rule) for rule in given if rule.name in derivation.rules]}


def write(report: Report, path: str | PathLike) -> Path:
    """Writes the certificates of every result of every region of a report; the path."""
    regions = [{"at": list(region.places), **c} for region in report.regions for c in region.certificates]
    path = Path(path)
    path.write_text(json.dumps({"onepass certificate": FORMAT, "regions": regions}), encoding="utf-8")
    return path


def verify(path: str | PathLike) -> tuple[Checked, ...]:
    """Checks every region of a file. Its own rules are listed, never taken for proved.

    Raises CertificateFileError for what is no certificate, CertificateError for the first step that is no instance of
    its rule, OSError for a file that cannot be read.
    """
    if Path(path).suffix == ".py":
        instead = f"`explain {path}:FUNC --certificate PATH` writes one; a rule is checked by onepass.check(rule)"
        raise CertificateFileError(f"{path} is Python, and no certificate: {instead}")
    if (size := Path(path).stat().st_size) > MOST_BYTES:
        raise CertificateFileError(f"{path} has {size} bytes, and a certificate has at most {MOST_BYTES}")
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
        if data["onepass certificate"] != FORMAT:
            raise CertificateFileError(f"{path} is of format {data['onepass certificate']!r}, not {FORMAT}")
        regions = [(tuple(map(str, r["at"])), r["derivation"], r["rules"]) for r in data["regions"]]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise (
            error
            if isinstance(error, OnepassError)
            else CertificateFileError(f"{path} is no certificate of onepass: {type(error).__name__}: {error}")
        ) from error
    return tuple(_checked(path, *region) for region in regions)


def _checked(path, places: tuple[str, ...], data, brought) -> Checked:
    rules = {rule.name: rule for rule in ALL}
    try:
        foreign = tuple(rule_from_json(rule) for rule in brought)
        derivation = Derivation.from_json(data)
        for rule in foreign:
            if rule.name in rules and statement(rule) != statement(rules[rule.name]):
                said = f"brings a rule {rule.name!r} that is not the law of this name: {rule}"
                raise CertificateFileError(f"{path} {said}")
            rules.setdefault(rule.name, rule)
    except OnepassError:
        raise
    except Exception as error:  # whatever the file holds, the answer is that it is no certificate
        raise CertificateFileError(f"{path} is no certificate of onepass: {type(error).__name__}: {error}") from error
    check(derivation, rules)
    return Checked(places, derivation, rules, tuple(r for r in foreign if r is rules[r.name]))

"""A user's rules are checked when they are given: proved ones are used, refuted ones are refused with their numbers.

An error here is an error of the call that gave the rules (GraphPass, explain; torch.compile's first call), not of the
model. A rule is proved once: its verdict is kept by what it says, in this process and in the disk cache.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache as once
from pathlib import Path

from . import __version__, cache
from .egraph.pattern_rule import PatternRule
from .egraph.rule import Rule
from .egraph.serial import digest, rule_to_json, statement
from .errors import RuleRefuted, RuleUnproved
from .rules import ALL

PROVED, REFUTED, UNKNOWN = "proved", "refuted", "unknown"


@dataclass(frozen=True)
class Known:
    """What is remembered of a verdict: its status, and its text with the counterexample or the reason."""

    status: str
    text: str


_KNOWN: dict[str, Known] = {}


def check(rule: Rule | PatternRule):
    """The provers' Verdict on a rule: proved, refuted with a counterexample, or unknown; with method and seconds.

    Raises TypeError for what is no rule. Loads the provers; may take seconds for a rule that is hard to decide.
    """
    from .proofs.check import check as decided
    from .proofs.verdict import Verdict

    if isinstance(rule, Rule):
        return decided(rule)
    if not isinstance(rule, PatternRule):
        raise TypeError(f"{rule!r} is no rule: decorate a law with @onepass.rule")
    if rule.rules is None:
        reason = "a side of it is code, or it has too many readings: only what it gives for a region can be checked"
        return Verdict(rule.name, UNKNOWN, "none", 0.0, None, reason)
    verdicts = [decided(each) for each in rule.rules]
    worst = min(verdicts, key=lambda verdict: (REFUTED, UNKNOWN, PROVED).index(verdict.status))
    return replace(worst, seconds=sum(verdict.seconds for verdict in verdicts))


def admit(rules: Sequence[Rule | PatternRule]) -> None:
    """Raises RuleRefuted for a rule that is no law, and RuleUnproved for one that nobody proved and nobody trusts."""
    for rule in rules:
        found = known(rule)
        if found.status == REFUTED:
            raise RuleRefuted(rule.name, rule.source, found.text)
        if found.status != PROVED and not rule.trusted:
            raise RuleUnproved(rule.name, rule.source, found.text)


def known(rule: Rule | PatternRule) -> Known:
    """The verdict on a rule, decided at most once for what it says."""
    if _is_shipped(rule):
        return Known(PROVED, "shipped, in the ledger")
    name = _key(rule)
    if name is None or name not in _KNOWN:
        found = (name and _remembered(name)) or _decided(rule)
        if name is None:
            return found
        _KNOWN[name] = found
        cache.write(name, {"status": found.status, "text": found.text})
    return _KNOWN[name]


def unproved(rule: Rule | PatternRule) -> bool:
    """Whether a rule is used on its author's word. Proves nothing: what is not remembered counts as unproved."""
    if not rule.trusted:
        return False
    name = _key(rule)
    found = None if name is None else _KNOWN.get(name) or _remembered(name)
    return found is None or found.status != PROVED


def forget() -> None:
    """Drops the verdicts of this process; the disk keeps its own."""
    _KNOWN.clear()


def _decided(rule: Rule | PatternRule) -> Known:
    verdict = check(rule)
    return Known(verdict.status, str(verdict))


def _remembered(name: str) -> Known | None:
    body = cache.read(name)
    if body is None or body.get("status") not in (PROVED, REFUTED, UNKNOWN):
        return None
    return Known(body["status"], str(body.get("text", "")))


def _is_shipped(rule: Rule | PatternRule) -> bool:
    law = next((law for law in ALL if law.name == rule.name), None)
    return law is not None and isinstance(rule, Rule) and statement(rule) == statement(law)


def _key(rule: Rule | PatternRule) -> str | None:
    """The name of a verdict: what the rule says and who decided it. None for a rule whose right side is code."""
    if isinstance(rule, PatternRule):
        if rule.rules is None:
            return None
        said = [rule_to_json(each) for each in rule.rules]
    else:
        said = [rule_to_json(rule)]
    for each in said:
        del each["source"], each["trusted"], each["law"]
    return digest(["verdict", said, _provers()])[:40]


@once
def _provers() -> str:
    """A name for the code that decides: a verdict of another version is not taken over."""
    from . import egraph, proofs

    folders = [Path(part.__file__).parent for part in (egraph, proofs)]
    files = [file for folder in folders for file in sorted(folder.glob("*.py"))]
    return digest([__version__, [[file.name, hashlib.sha256(file.read_bytes()).hexdigest()] for file in files]])

"""A user's rules are checked when they are given: proved ones are used, refuted ones are refused with their numbers.

An error here is an error of the call that gave the rules (GraphPass, explain; torch.compile's first call), not of the
model. A rule is proved once: its verdict is kept by what it says, in this process and in the disk cache. A verdict from
the disk is believed by its signature alone: nothing short of proving it again could tell.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache as once
from typing import Any, Final

from .. import __version__
from ..egraph.derivation import ledger
from ..egraph.rewrite.pattern_rule import PatternRule
from ..egraph.rewrite.rule import Rule
from ..egraph.rewrite.serialization import digest, rule_to_json
from ..egraph.terms.term import Term
from ..egraph.terms.traversal import subterms
from ..errors import RuleRefuted, RuleUnproved, no_rule
from ..process_state import registered
from ..rules import ALL
from . import disk_cache

PROVED: Final = "proved"
REFUTED: Final = "refuted"
UNKNOWN: Final = "unknown"
BITWISE, DIVIDED = "bitwise", "nothing overflows before it is divided"
IN_RANGE = (
    "no exponential overflows or vanishes as a float: it is proved over the real numbers, and assert_rule leaves such "
    "values out"
)
UNREADABLE = "a side of it is code, or it has too many readings: only what it gives for a region can be checked"


@dataclass(frozen=True)
class Known:
    """What is remembered of a verdict: its status, and its text with the counterexample or the reason."""

    status: str
    text: str


_KNOWN: dict[str, Known] = registered({}, "verdicts")


def check(rule: Rule | PatternRule) -> Any:
    """The provers' Verdict on a rule: proved, refuted with a counterexample, or unknown; with method and seconds.

    A pattern rule is what its readings are: refuted if one is, proved if all are. Raises TypeError for what is no rule.
    Loads the provers; nothing is remembered here.

    >>> import onepass
    >>> @onepass.rule
    ... def square_of_a_sum(a, b):
    ...     "(a + b)² = a² + b²"
    ...     return (a + b) * (a + b), a * a + b * b
    >>> onepass.check(square_of_a_sum).status
    'refuted'
    """
    from ..proofs.check import check as decided
    from ..proofs.verdict import Verdict

    if isinstance(rule, Rule):
        return _with_range(decided(rule), rule)
    if not isinstance(rule, PatternRule):
        raise TypeError(f"check was given {no_rule(rule)}")
    if rule.rules is None:
        return Verdict(rule.name, UNKNOWN, "none", 0.0, None, UNREADABLE)
    return replace(_worst([_with_range(decided(each), each) for each in rule.rules]), rule=rule.name)


def _with_range(verdict: Any, rule: Rule) -> Any:
    """The verdict of a proof; where the rule makes an exponential that may leave the range of floats, it says so."""
    makes = _makes(rule.left, rule.right) or (rule.both and _makes(rule.right, rule.left))
    if verdict.status != PROVED or rule.exact in (BITWISE, DIVIDED) or not makes:
        return verdict
    return replace(verdict, assumptions=(*verdict.assumptions, IN_RANGE))


def _makes(before: Term, after: Term) -> bool:
    """Whether one side has an exponential that the other one does not have, and that no maximum keeps in range."""
    exponentials = {n for n in subterms(after) if n.op in ("exp", "exp2")}.difference(subterms(before))
    return any(not _is_shifted(node.args[0]) for node in exponentials)


def _is_shifted(exponent: Term) -> bool:
    """Whether something largest is subtracted: s - max_j s."""
    shift = subterms(exponent.args[1]) if exponent.op == "sub" else ()
    return any(n.op in ("maximum", "scale") or (n.op == "reduce" and n.attrs[0] == "max") for n in shift)


def _worst(found):
    return min(found, key=lambda one: (REFUTED, UNKNOWN, PROVED).index(one.status))


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
    if isinstance(rule, PatternRule):
        return Known(UNKNOWN, UNREADABLE) if rule.rules is None else _worst([known(each) for each in rule.rules])
    if ledger.is_proved(rule):
        return Known(PROVED, "shipped, in the ledger")
    name = _key(rule)
    found = _KNOWN.get(name)
    if found is None:
        found = _remembered(name)
        if found is None:
            verdict = check(rule)
            found = Known(verdict.status, str(verdict))
            disk_cache.write(name, {"status": found.status, "text": found.text})
        _KNOWN[name] = found
    return found


def unproved(rule: Rule) -> bool:
    """Whether a rule, a user's or ours, is used on its author's word.

    Proves nothing: what is not remembered counts as unproved.
    """
    if ledger.is_proved(rule) or not (rule.trusted or rule in ALL):
        return False
    name = _key(rule)
    found = _KNOWN.get(name) or _remembered(name)
    return found is None or found.status != PROVED


def _remembered(name: str) -> Known | None:
    body = disk_cache.read(name)
    if body is None or body.get("status") not in (PROVED, REFUTED, UNKNOWN):
        return None
    return Known(body["status"], str(body.get("text", "")))


def _key(rule: Rule) -> str:
    """The name of a verdict: what the rule says, and the code that decides."""
    said = rule_to_json(rule)
    for part in ("law", "source", "trusted"):
        del said[part]
    return digest(["verdict", said, _provers()])[:40]


@once
def _provers() -> str:
    """A name for the code that decides, and for what it reads: a verdict of another version is not taken over."""
    from .. import egraph, proofs

    return digest([__version__, disk_cache.code_digest(egraph, proofs)])

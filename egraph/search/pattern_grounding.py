"""Makes plain rules of pattern rules for the search of one region.

A pattern rule is expanded into its readings if egglog can state all of them. Otherwise (code, too many choices, a guard
without egglog facts) it is matched on the subterms of the normalised region. Each result is verified and becomes a
ground rule, which has no variables. Example: a rule of code that matches 0.5 · (a + b) gives one rule about that term.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from ..derivation.certificate import CertificateError
from ..rewrite.match import Binding
from ..rewrite.pattern_rule import Declined, PatternRule
from ..rewrite.pattern_semantics import matched_by
from ..rewrite.rule import Rule
from ..terms.term import Term
from ..terms.traversal import subterms
from .engine import EngineError, rule_text

MAX_INSTANCES = 100  # of one rule in one region


@dataclass(frozen=True)
class GroundInstance:
    """An equation about one region, with its origin: the pattern rule and the values of its variables."""

    rule: Rule
    origin: PatternRule
    binding: Binding

    def verify(self) -> None:
        """Raises CertificateError unless pattern, guards and right side hold by the definition of matching."""
        if not matched_by(self.origin.left, self.rule.left, self.binding):
            raise CertificateError(0, f"{self.rule.name}: {self.rule.left} does not match {self.origin.left}")
        if not self.origin.allows(self.binding):
            raise CertificateError(0, f"{self.rule.name}: a guard of {self.origin} does not hold")
        if not any(self.rule.right in self.origin.results(right, self.binding) for right in self.origin.rights):
            raise CertificateError(0, f"{self.rule.name}: {self.rule.right} is no right side of {self.origin}")


@dataclass
class Grounded:
    """Plain rules, some of them about the region, and for each rule how often it declined for which reason.

    names: of each rule that was given, the plain rules that it became.
    """

    rules: tuple[Rule, ...] = ()
    names: dict[str, tuple[str, ...]] = field(default_factory=dict)
    declined: dict[str, dict[str, int]] = field(default_factory=dict)


def ground(given: Sequence[Rule | PatternRule], regions: Sequence[Term], device: str | None = None) -> Grounded:
    """The given rules as plain rules, for the terms of a region in normal form and a type of device (None: unknown).

    Raises RuleError if the code of a right side fails, CertificateError if a result cannot be verified.
    """
    became: dict[str, tuple[Rule, ...]] = {}
    declined: dict[str, dict[str, int]] = {}
    for each in given:
        became[each.name] = ()
        if isinstance(each, Rule):
            became[each.name] = (each,)
        elif each.device not in (None, device):
            declined[each.name] = {f"it is for {each.device} only": 1}
        elif readable(each):
            became[each.name] = tuple(each.rules)
        else:
            found, reasons = _instances(each, regions)
            became[each.name] = tuple(instance.rule for instance in found)
            if reasons:
                declined[each.name] = dict(reasons)
    names = {name: tuple(rule.name for rule in rules) for name, rules in became.items()}
    return Grounded(tuple(rule for rules in became.values() for rule in rules), names, declined)


def readable(rule: PatternRule) -> bool:
    """Whether a pattern rule has equivalent plain rules, and egglog can state all of them."""
    try:
        return rule.rules is not None and all(rule_text(r, "user") for r in rule.rules)
    except EngineError:
        return False


def _instances(origin: PatternRule, regions: Sequence[Term]) -> tuple[list[GroundInstance], Counter]:
    found: dict[tuple[Term, Term], GroundInstance] = {}
    declined: Counter = Counter()
    for node in dict.fromkeys(node for region in regions for node in subterms(region)):
        for application in origin.applications(node) if node.dtype != "int64" else ():
            result = application.result
            why = result.reason if isinstance(result, Declined) else _misfit(node, result)
            if why or isinstance(result, Declined):
                declined[why] += 1
            elif result is not node and (node, result) not in found:
                if len(found) == MAX_INSTANCES:
                    declined[f"more than {MAX_INSTANCES} instances in one region"] += 1
                    return list(found.values()), declined
                rule = _equation(origin, len(found) + 1, node, result)
                found[node, result] = GroundInstance(rule, origin, application.binding)
                found[node, result].verify()
    return list(found.values()), declined


def _equation(origin: PatternRule, number: int, left: Term, right: Term) -> Rule:
    name = f"{origin.name} #{number}"
    return Rule(name, origin.law, left, right, (), (), False, origin.exact, origin.source, origin.trusted)


def _misfit(left: Term, right: Term) -> str:
    """Why the right term cannot replace the left one; "" if it can."""
    if left.dtype != right.dtype and "float" not in (left.dtype, right.dtype):
        return f"the right side is {right.dtype}, the left side {left.dtype}"
    extra = sorted(d.name for d in right.dims - left.dims)
    return f"the right side depends on {', '.join(extra)}, the left side does not" if extra else ""

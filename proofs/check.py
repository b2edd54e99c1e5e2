"""`check(rule)`: the verdict on one rule, by the layers in order; each decides or leaves the question to the next.

Invariant: only a proof says proved, only a counterexample says refuted, and everything else is unknown with its reason.
Used at the definition of users' rules, by `python -m onepass prove`, and by tests.
"""

from __future__ import annotations

from time import perf_counter

from ..egraph.rule import Rule, RuleError, refuse_bad
from .refute import search
from .verdict import Verdict

BUDGET = 2.0


def check(rule: Rule, budget: float = BUDGET) -> Verdict:
    """The verdict on a rule within about `budget` seconds. Never raises for a rule that is merely wrong."""
    start = perf_counter()

    def verdict(status, method, reason="", found=None) -> Verdict:
        under = (rule.assumption,) if rule.assumption else ()
        return Verdict(rule.name, status, method, perf_counter() - start, found, reason, under)

    try:
        refuse_bad(rule)
    except RuleError as error:
        return verdict("refuted", "well-formedness", str(error))
    found, met = search(rule, budget)
    if found:
        return verdict("refuted", "random float64 values", found=found)
    return verdict("unknown", "random float64 values", f"no proof was found; {met} random instances agree")

"""How many wrong rules the provers let through: mutants of every shipped rule, and the zoo of unsound_rules.py.

None may be proved that is wrong. A mutant that is proved is looked at again with many more random instances: those that
stand are laws in fact, and are listed as such.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from time import perf_counter

from ..egraph.rewrite.rule import Rule
from ..egraph.sampling.mutants import mutants
from .check import check
from .refute import counterexample
from .unsound_rules import ZOO

BUDGET, SECOND_LOOK = 0.5, 2000  # seconds for a mutant; random instances against one that was proved


@dataclass(frozen=True)
class Score:
    """Names by verdict. sound: proved, and no counterexample in a second look; wrongly_proved: proved and refuted."""

    refuted: tuple[str, ...]
    unknown: tuple[str, ...]
    sound: tuple[str, ...]
    wrongly_proved: tuple[str, ...]
    seconds: float

    def __str__(self) -> str:
        wrong = len(self.refuted) + len(self.unknown) + len(self.wrongly_proved)
        kept = wrong - len(self.wrongly_proved)
        lines = [
            f"mutants and zoo in {self.seconds:.0f} s: {len(self.refuted)} refuted, {len(self.unknown)} unknown,"
            f" {len(self.sound)} laws in fact",
            f"score: {kept} of {wrong} wrong or undecided rules are not proved",
            *(f"  unknown: {name}" for name in self.unknown),
            *(f"  a law in fact: {name}" for name in self.sound),
        ]
        return "\n".join(lines)


def score(rules: Iterable[Rule], zoo: Iterable[Rule] = ZOO) -> Score:
    """Decides every mutant of the rules, and the zoo, in which nothing is a law."""
    start = perf_counter()
    found: dict[str, list[str]] = {"refuted": [], "unknown": [], "proved": [], "wrong": []}
    for rule in rules:
        for mutant in mutants(rule):
            status = check(mutant, BUDGET).status
            if status == "proved" and counterexample(mutant, 2 * BUDGET, SECOND_LOOK):
                status = "wrong"
            found[status].append(mutant.name)
    for rule in zoo:
        status = check(rule).status
        found["wrong" if status == "proved" else status].append(f"{rule.name} of the zoo")
    return Score(*(tuple(found[k]) for k in ("refuted", "unknown", "proved", "wrong")), perf_counter() - start)

"""Proves the statements of laws in Rocq: a file for each module of rules/, written, compiled and never committed.

The proof of every law is the tactic `law` of theory/Tactics.v. A law that is not proved is dropped from its file, which
is compiled again, so that one failure does not hide others. Example: the laws of rules/mask.py are in Laws_mask.v.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from ...egraph.derivation.ledger import entries
from ...egraph.rewrite.rule import Rule
from ..provers.claims import FINITE_BACKWARD
from ..provers.reduction_prover import NOT_EMPTY
from . import derivatives
from .compiler import TheoryError, compile_file, write
from .statements import LawStatement, NotStated, statements

# Of one statement, by the clock: most take less than one, some 10 of a processor that others may use, too.
SECONDS_OF_A_PROOF, SECONDS_OF_A_WRONG_LAW = 600, 10
HEAD = """From Coq Require Import Reals ZArith.
From Onepass Require Import Values Folds Totals Tactics Derivatives.
Open Scope R_scope.
"""
ROWS = "Laws_of_derivatives"  # the rows of egraph/calculus/partials.py
EVERY = "every_law"  # of a module: all its theorems, so that Rocq says once on which axioms they stand
LINE = re.compile(r"line (\d+)")
ATTEMPT = re.compile(r"^(PROVED|OPEN) (\w+)$", re.MULTILINE)


@dataclass
class CheckedLaws:
    """The laws of one module of rules/: statements that Rocq has checked by law, and why the others are not."""

    module: str
    checked: dict[str, tuple[LawStatement, ...]] = field(default_factory=dict)
    why_not: dict[str, str] = field(default_factory=dict)

    @property
    def theorems(self) -> int:
        """The number of theorems that are checked."""
        return sum(map(len, self.checked.values()))


def claimed(rule: Rule) -> tuple[LawStatement, ...]:
    """What the ledger's verdict on a shipped law claims. Raises NotStated."""
    assuming = entries().get(rule.name, {}).get("assuming", ())
    return statements(rule, NOT_EMPTY in assuming, FINITE_BACKWARD in assuming)


def module_of(rule: Rule) -> str:
    """The Rocq module of a law, by the file in which the law is."""
    return f"Laws_{Path(rule.source.rpartition(':')[0]).stem}"


def by_module(rules: Iterable[Rule]) -> dict[str, list[Rule]]:
    """The laws by Rocq module, in order."""
    found: dict[str, list[Rule]] = defaultdict(list)
    for rule in rules:
        found[module_of(rule)].append(rule)
    return dict(found)


def theorem(statement: LawStatement, tactic: str) -> str:
    """A statement and its proof, in Rocq."""
    proof = f"timeout {SECONDS_OF_A_PROOF} {tactic}"
    return f"Theorem {statement.name} : {statement.proposition}.\nProof. {proof}. Qed.\n"


def prove_module(module: str, rules: list[Rule]) -> CheckedLaws:
    """Proves the laws of a module of rules/."""
    return prove_claims(module, {rule.name: partial(claimed, rule) for rule in rules}, "law")


def prove_rows() -> CheckedLaws:
    """Proves that the rows of egraph/calculus/partials.py are derivatives."""
    names = {f"derivative_of_{op}": partial(derivatives.of_operation, op) for op in derivatives.operations()}
    return prove_claims(ROWS, names, "derivative")


def prove_claims(module: str, claims: Mapping[str, Callable[[], Iterable[LawStatement]]], tactic: str) -> CheckedLaws:
    """Compiles what is claimed, by name; the module's file then has what is proved."""
    found = CheckedLaws(module)
    for name, claim in claims.items():
        try:
            found.checked[name] = tuple(claim())
        except NotStated as error:
            found.why_not[name] = str(error)
    while found.checked:
        text, starts = HEAD, {}
        for name, stated in found.checked.items():
            starts[name] = text.count("\n") + 1
            text += "\n" + "\n".join(theorem(statement, tactic) for statement in stated)
        names = ", ".join(f"@{statement.name}" for stated in found.checked.values() for statement in stated)
        write(module, f"{text}\nDefinition {EVERY} := ({names}).\n")
        try:
            compile_file(module)
            break
        except TheoryError as error:
            place = LINE.search(str(error))
            failed = [name for name, start in starts.items() if place and start <= int(place.group(1))]
            if not failed:
                raise
            found.why_not[failed[-1]] = str(error).strip().splitlines()[-1]
            del found.checked[failed[-1]]
    return found


def attempts(rules: Iterable[Rule], module: str, law: str = "law") -> dict[str, bool]:
    """Whether the tactic proves all that a rule claims, by the rule's name; rules without a statement are left out.

    The claims are those of a verdict without further assumptions. For wrong laws, of which none may be proved.
    """
    claims = {rule.name: partial(statements, rule, nonempty=False, finite_backward=False) for rule in rules}
    return attempted(module, claims, law)


def attempted_rows() -> dict[str, bool]:
    """Whether the tactic proves that a row gives twice the slope, by operation and operand; none may be proved."""
    stated = [s for op in derivatives.operations() for s in derivatives.of_operation(op, 2.0)]
    return attempted(f"Wrong_{ROWS}", {s.name: partial(tuple, (s,)) for s in stated}, "derivative")


def attempted(module: str, claims: Mapping[str, Callable[[], Iterable[LawStatement]]], tactic: str) -> dict[str, bool]:
    """Whether the tactic proves all of each claim that can be stated."""
    text, parts = HEAD, defaultdict(list)
    for claim, stated in claims.items():
        try:
            found = tuple(stated())
        except NotStated:
            continue
        for n, statement in enumerate(found):
            name = f"{claim}_{n}"
            parts[claim].append(name)
            tried = f"timeout {SECONDS_OF_A_WRONG_LAW} (solve [{tactic}])"
            words = f'tryif {tried} then idtac "PROVED {name}" else idtac "OPEN {name}"'
            text += f"\nGoal {statement.proposition}.\nProof. {words}. Abort.\n"
    write(module, text)
    proved = {name: word == "PROVED" for word, name in ATTEMPT.findall(compile_file(module))}
    if proved.keys() != {name for names in parts.values() for name in names}:
        raise TheoryError(f"{module}.v: not every statement was tried")
    return {claim: all(proved[name] for name in names) for claim, names in parts.items()}

"""`python -m onepass prove`: decides every shipped rule, prints the verdicts, writes ledger.toml, and scores mutants.

The ledger has an entry for each rule: a digest of what it claims, the verdict, the method, and the seconds it took. An
entry stays as it is if rule and verdict did not change. A test compares the ledger with the rules. Example: the entry
of `subtract_zero` has the verdict "proved" and the method "cells".
"""

from __future__ import annotations

import json
from time import perf_counter

from ..egraph.derivation import ledger
from ..egraph.derivation.ledger import LEDGER, digest_of, meanings
from ..egraph.rewrite.rule import Rule
from ..rules import ALL
from .check import check
from .mutation_score import score
from .verdict import Verdict

HEAD = "# What `python -m onepass prove` found of every shipped rule. Written by it; not edited by hand.\n"
TABLE_WIDTH = 160  # characters, if the output is no terminal


def main(quick: bool = False) -> int:
    """Proves, prints and writes. Returns 1 if a shipped rule is not proved, or a wrong one is. quick: no mutants."""
    start = perf_counter()
    verdicts = [check(rule) for rule in ALL]
    proving = perf_counter() - start
    write(verdicts)
    show(verdicts)
    proved = sum(v.status == "proved" for v in verdicts)
    print(f"{proved} of {len(verdicts)} rules proved in {proving:.1f} s; the ledger is {LEDGER.name}")
    return max(int(proved < len(verdicts)), 0 if quick else _print_score())


def _print_score() -> int:
    """Prints the mutation score. Returns 1 if a wrong rule is proved."""
    found = score(ALL)
    print(found)
    for name in found.wrongly_proved:
        print(f"PROVED AND WRONG: {name}")
    return 1 if found.wrongly_proved else 0


def show(verdicts: list[Verdict]) -> None:
    """Prints a table of the verdicts, those that are not proved first."""
    from rich.console import Console
    from rich.table import Table

    table = Table("rule", "verdict", "method", "ms", "assuming", box=None, pad_edge=False)
    for v in sorted(verdicts, key=lambda v: v.status == "proved"):
        table.add_row(v.rule, v.status, v.method, f"{1000 * v.seconds:.0f}", "; ".join(v.assumptions) or v.reason)
    console = Console()
    (console if console.is_terminal else Console(width=TABLE_WIDTH)).print(table)
    for v in verdicts:
        if v.status != "proved":
            print(f"\n{v}")


def write(verdicts: list[Verdict]) -> None:
    """Writes the verdicts into the ledger. Raises OSError if it cannot be written."""
    old = ledger.entries()
    lines = [HEAD, f"\nmeanings = {json.dumps(meanings())}\n"]
    for rule, v in zip(ALL, verdicts):
        lines.append(f"\n[rules.{rule.name}]\n")
        entry = _entry(rule, v)
        before = old.get(rule.name, {})
        if all(before.get(k) == entry[k] for k in entry if k != "seconds"):
            entry = before
        lines += [f"{key} = {json.dumps(value, ensure_ascii=False)}\n" for key, value in entry.items()]
    text = "".join(lines)
    if not LEDGER.is_file() or LEDGER.read_text(encoding="utf-8") != text:
        LEDGER.write_text(text, encoding="utf-8")
        ledger.forget()


def _entry(rule: Rule, v: Verdict) -> dict[str, object]:
    return {
        "digest": digest_of(rule),
        "verdict": v.status,
        "method": v.method,
        "seconds": round(v.seconds, 3),
        "assuming": list(v.assumptions),
    }

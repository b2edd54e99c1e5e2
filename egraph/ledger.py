"""Reads the ledger of proved rules, proofs/ledger.toml: run time asks it and never imports a prover.

An entry counts only for the very statement that was proved: a rule that was edited since is not in the ledger. Written
by `python -m onepass prove`; a missing or damaged ledger proves nothing.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from .rule import Rule
from .serial import digest, rule_to_json

LEDGER = Path(__file__).resolve().parent.parent / "proofs" / "ledger.toml"
STATED = ("name", "left", "right", "variables", "guards", "both", "exact")


def digest_of(rule: Rule) -> str:
    """A name for everything that a rule claims, the assumption included."""
    written = rule_to_json(rule)
    return digest([written[part] for part in STATED])[:16]


@cache
def entries() -> dict[str, dict]:
    """The ledger's entries by name of rule; none if it cannot be read."""
    try:
        return tomllib.loads(LEDGER.read_text(encoding="utf-8")).get("rules", {})
    except (OSError, ValueError):
        return {}


def is_proved(rule: Rule) -> bool:
    """Whether the ledger says that this statement is proved."""
    entry = entries().get(rule.name, {})
    return entry.get("verdict") == "proved" and entry.get("digest") == digest_of(rule)


def unproved(rules: Iterable[Rule]) -> list[str]:
    """Names of the rules that the ledger does not call proved."""
    return [rule.name for rule in rules if not is_proved(rule)]

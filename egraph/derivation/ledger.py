"""Reads the ledger of proved rules, proofs/ledger.toml: run time asks it and never imports a prover.

An entry counts only for the very statement that was proved, and only while operations and guards mean what they meant
then: after an edit of a rule, of a meaning in egraph/terms/ops.py or of a guard, nothing counts until `python -m
onepass prove` has run again. A missing or damaged ledger proves nothing.
"""

from __future__ import annotations

import ast
import hashlib
import tomllib
from collections.abc import Iterable, Sequence
from functools import cache, lru_cache
from pathlib import Path

from ..rewrite.rule import Rule
from ..rewrite.serialization import digest, rule_to_json

EGRAPH = Path(__file__).resolve().parent.parent
LEDGER = EGRAPH.parent / "proofs" / "ledger.toml"
STATED = ("name", "left", "right", "variables", "guards", "both", "exact")
# The modules that say what laws mean.
MEANINGS = (
    "terms/term",
    "terms/traversal",
    "terms/ops",
    "terms/addends",
    "terms/affine",
    "terms/evaluate",
    "rewrite/guard",
    "rewrite/match",
    "rewrite/rule",
    "rewrite/define",
)


@lru_cache(1024)
def digest_of(rule: Rule) -> str:
    """A name for everything that a rule claims, the assumption included."""
    written = rule_to_json(rule)
    return digest([written[part] for part in STATED])[:16]


@cache
def meanings() -> str:
    """A name for what operations, guards and assumptions mean: the code of MEANINGS without comments and docstrings."""
    sources = [(EGRAPH / f"{module}.py").read_text(encoding="utf-8") for module in MEANINGS]
    return digest_of_code(sources)


def digest_of_code(sources: Sequence[str]) -> str:
    """A name for Python code as it runs: comments, docstrings, imports and empty lines do not count."""
    whole = hashlib.sha256()
    for source in sources:
        lines = source.splitlines()
        for first, last in _unread(ast.parse(source)):
            lines[first - 1 : last] = [""] * (last - first + 1)
        whole.update("\n".join(filter(None, (_without_comment(line).rstrip() for line in lines))).encode())
    return whole.hexdigest()[:16]


def _unread(tree: ast.Module) -> Iterable[tuple[int, int]]:
    """First and last lines of imports and of strings that stand alone."""
    for node in ast.walk(tree):
        value = node.value if isinstance(node, ast.Expr) else None
        alone = isinstance(value, ast.Constant) and isinstance(value.value, str)
        if alone or isinstance(node, (ast.Import, ast.ImportFrom)):
            yield node.lineno, node.end_lineno


def _without_comment(line: str) -> str:
    """The line up to a comment. A line with a quote in it is kept whole: its # may stand in a string."""
    return line if '"' in line or "'" in line else line.partition("#")[0]


@cache
def _read() -> dict:
    try:
        return tomllib.loads(LEDGER.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}


def entries() -> dict[str, dict]:
    """The ledger's entries by name of rule; none if it cannot be read, or was written for other meanings."""
    try:
        return _read().get("rules", {}) if _read().get("meanings") == meanings() else {}
    except OSError:  # the sources are not there to be compared
        return {}


def forget() -> None:
    """Reads the ledger anew at the next question."""
    _read.cache_clear()


def is_proved(rule: Rule) -> bool:
    """Whether the ledger says that this statement is proved."""
    entry = entries().get(rule.name, {})
    return entry.get("verdict") == "proved" and entry.get("digest") == digest_of(rule)


def proved(rules: Iterable[Rule]) -> tuple[Rule, ...]:
    """The rules that the ledger calls proved, in order: the others are not used."""
    return tuple(rule for rule in rules if is_proved(rule))


def unproved(rules: Iterable[Rule]) -> list[str]:
    """Names of the rules that the ledger does not call proved."""
    return [rule.name for rule in rules if not is_proved(rule)]

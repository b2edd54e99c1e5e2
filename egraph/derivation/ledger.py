"""Reads the ledger of proved rules, proofs/ledger.toml, so that run time needs no prover.

An entry counts only for exactly the statement that was proved. No entry counts after an edit of the modules in
MEANINGS, which say what operations and guards mean, until `python -m onepass prove` has run again. A missing or damaged
ledger proves nothing. Example: `is_proved(rule)` is False for a rule with one more guard than its entry.
"""

from __future__ import annotations

import ast
import hashlib
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from functools import cache, lru_cache
from pathlib import Path

from ..rewrite.rule import Rule
from ..rewrite.serialization import digest, rule_to_json

EGRAPH = Path(__file__).resolve().parent.parent
LEDGER = EGRAPH.parent / "proofs" / "ledger.toml"
STATED = ("name", "left", "right", "variables", "guards", "both", "exact")
# The modules that say what a law means.
MEANINGS = (
    "terms/term",
    "terms/traversal",
    "terms/ops",
    "terms/philox",
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
    """A digest of everything that a rule claims, its assumption included."""
    written = rule_to_json(rule)
    return digest([written[part] for part in STATED])[:16]


@cache
def meanings() -> str:
    """A digest of the code that says what operations, guards and assumptions mean."""
    sources = [(EGRAPH / f"{module}.py").read_text(encoding="utf-8") for module in MEANINGS]
    return digest_of_code(sources)


def digest_of_code(sources: Sequence[str]) -> str:
    """A digest of Python code. Comments, docstrings, imports and empty lines do not count."""
    whole = hashlib.sha256()
    for source in sources:
        lines = source.splitlines()
        for first, last in _unread(ast.parse(source)):
            lines[first - 1 : last] = [""] * (last - first + 1)
        whole.update("\n".join(filter(None, (_without_comment(line).rstrip() for line in lines))).encode())
    return whole.hexdigest()[:16]


def _unread(tree: ast.Module) -> Iterable[tuple[int, int]]:
    """First and last lines of imports, docstrings and other strings that are statements."""
    for node in _statements(tree):
        match node:
            case ast.Import() | ast.ImportFrom() | ast.Expr(value=ast.Constant(value=str())):
                yield node.lineno, node.end_lineno


def _statements(tree: ast.AST) -> Iterator[ast.AST]:
    """Every statement, and the parts of statements that have some. Expressions have none, and are most of a tree."""
    for block in ("body", "orelse", "finalbody", "handlers", "cases"):
        inside = getattr(tree, block, ())
        for node in inside if isinstance(inside, list) else ():
            yield node
            yield from _statements(node)


def _without_comment(line: str) -> str:
    """The line without a comment. A line with a quote is kept whole, because its # may be part of a string."""
    return line if '"' in line or "'" in line else line.partition("#")[0]


@cache
def _read() -> dict:
    try:
        return tomllib.loads(LEDGER.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}


def entries() -> dict[str, dict]:
    """The entries by the rule's name; none if the ledger cannot be read or was written for other meanings."""
    try:
        return _read().get("rules", {}) if _read().get("meanings") == meanings() else {}
    except OSError:  # the sources are not installed
        return {}


def forget() -> None:
    """Drops what was read of the ledger; the next query reads the file."""
    _read.cache_clear()


def is_proved(rule: Rule) -> bool:
    """Whether the ledger says that this statement is proved."""
    entry = entries().get(rule.name, {})
    return entry.get("verdict") == "proved" and entry.get("digest") == digest_of(rule)


def proved(rules: Iterable[Rule]) -> tuple[Rule, ...]:
    """The rules that the ledger calls proved, in order."""
    return tuple(rule for rule in rules if is_proved(rule))


def unproved(rules: Iterable[Rule]) -> list[str]:
    """Names of the rules that the ledger does not call proved."""
    return [rule.name for rule in rules if not is_proved(rule)]

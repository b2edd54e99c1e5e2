"""Terms as readable mathematics: infix operators, Σ/max with the bound dim, shared subterms named once.

`show` gives one line, `show_let` names shared parts.
"""

from __future__ import annotations

from collections import Counter

from .term import HOOKS, Term
from .traversal import subterms

_INFIX = {"add": ("+", 1), "sub": ("-", 1), "mul": ("·", 2), "div": ("/", 2), "floordiv": ("//", 2), "mod": ("%", 2)}
_INFIX |= {"lt": ("<", 0), "le": ("≤", 0), "eq": ("=", 0), "and": ("∧", -1), "or": ("∨", -2), "pow": ("^", 3)}
LONG = 2000  # characters of a line that still is written out
_FOLDS = {"sum": "Σ", "prod": "Π", "rescaled": "⊕"}


def _number(value) -> str:
    if isinstance(value, float):
        return {float("inf"): "∞", float("-inf"): "-∞"}.get(value, f"{value:.9g}")
    return str(value)


def _text(node: Term, parts: list[tuple[str, int]]) -> tuple[str, int]:
    """The node's text and its binding strength, from those of its arguments."""

    def held(k: int, least: int) -> str:
        text, strength = parts[k]
        return text if strength >= least else f"({text})"

    if node.op in _INFIX:
        sign, strength = _INFIX[node.op]
        return f"{held(0, strength)} {sign} {held(1, strength + 1)}", strength
    match node.op:
        case "const":
            return _number(node.attrs[0]), 9 if node.attrs[0] >= 0 else 1
        case "iota" | "var" | "size":
            return str(node.attrs[0]), 9
        case "load":
            name = node.attrs[0].name
            return f"{name}[{', '.join(text for text, _ in parts)}]" if parts else name, 9
        case "reduce":
            monoid, dim = node.attrs
            return f"{_FOLDS.get(monoid, monoid)}_{dim} {held(0, 2)}", 1
        case "cast":
            return f"{node.attrs[0]}({parts[0][0]})", 9
        case "neg":
            return f"-{held(0, 3)}", 2
        case "apply":
            return f"{node.attrs[0]}({', '.join(text for text, _ in parts)})", 9
        case "again":
            return str(node.attrs[0]), 9
        case "given":
            return f"given({', '.join([parts[0][0], *map(str, node.attrs)])})", 9
        case "exists" | "recursive":
            return f"{node.op}({node.attrs[0]}: {parts[0][0]})", 9
        case "scaled":
            return f"⟨{parts[0][0]}, {parts[1][0]}⟩", 9
    return f"{node.op}({', '.join(text for text, _ in parts)})", 9


def show(root: Term) -> str:
    """The whole term on one line, with names for shared parts only where it would be long: it doubles with each."""
    done: dict[Term, tuple[str, int]] = {}
    for node in subterms(root):
        done[node] = _text(node, [done[a] for a in node.args])
        if len(done[node][0]) > LONG:
            *named, result = show_let(root).splitlines()
            return " where ".join([result, *([", ".join(named)] if named else [])])
    return done[root][0]


def show_let(*roots: Term, least: int = 24) -> str:
    """A line for each subterm used more than once and longer than `least` characters, then one for each result."""
    nodes = list(dict.fromkeys(node for root in roots for node in subterms(root)))
    uses = Counter(a for node in nodes for a in node.args) + Counter(roots)
    done: dict[Term, tuple[str, int]] = {}
    lines: list[str] = []
    for node in nodes:
        text, strength = _text(node, [done[a] for a in node.args])
        if uses[node] > 1 and len(text) > least:
            name = f"t{len(lines)}"
            lines.append(f"{name} = {text}")
            text, strength = name, 9
        done[node] = (text, strength)
    return "\n".join([*lines, *(done[root][0] for root in roots)])


HOOKS["show"] = show

"""Prints terms as mathematics: infix operators, and Σ or max with the dim that they bind.

Each subterm has a text and a binding strength, which decides about parentheses. `show` gives one line; `show_let` gives
shared subterms names. Example: `show((x + y) * 2.0)` is "(x + y) · 2".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from .term import HOOKS, Term
from .traversal import subterms

Part = tuple[str, int]  # the text of a subterm, and how strongly it binds

OR, AND, COMPARISON, SUM, PRODUCT, POWER, ATOM = -2, -1, 0, 1, 2, 3, 9  # binding strengths
_INFIX = {
    "or": ("∨", OR),
    "and": ("∧", AND),
    "lt": ("<", COMPARISON),
    "le": ("≤", COMPARISON),
    "eq": ("=", COMPARISON),
    "add": ("+", SUM),
    "sub": ("-", SUM),
    "mul": ("·", PRODUCT),
    "div": ("/", PRODUCT),
    "floordiv": ("//", PRODUCT),
    "mod": ("%", PRODUCT),
    "pow": ("^", POWER),
}
MAX_LINE_CHARACTERS = 2000  # a longer term is printed with names for its shared subterms
_FOLDS = {"sum": "Σ", "prod": "Π", "rescaled": "⊕"}


def _number(value: float | int | bool) -> str:
    if isinstance(value, float):
        return {float("inf"): "∞", float("-inf"): "-∞"}.get(value, f"{value:.9g}")
    return str(value)


def _enclosed(part: Part, least: int) -> str:
    """The text, in parentheses if it binds less strongly than its place needs."""
    text, strength = part
    return text if strength >= least else f"({text})"


def _called(name: object, parts: Sequence[Part]) -> str:
    return f"{name}({', '.join(text for text, _ in parts)})"


def _constant(node: Term, _: Sequence[Part]) -> Part:
    return _number(node.attrs[0]), ATOM if node.attrs[0] >= 0 else SUM


def _load(node: Term, parts: Sequence[Part]) -> Part:
    name = node.attrs[0].name
    return f"{name}[{', '.join(text for text, _ in parts)}]" if parts else name, ATOM


def _reduction(node: Term, parts: Sequence[Part]) -> Part:
    monoid, dim = node.attrs
    return f"{_FOLDS.get(monoid, monoid)}_{dim} {_enclosed(parts[0], PRODUCT)}", SUM


def _negation(_: Term, parts: Sequence[Part]) -> Part:
    return f"-{_enclosed(parts[0], POWER)}", PRODUCT


def _name(node: Term, _: Sequence[Part]) -> Part:
    return str(node.attrs[0]), ATOM


def _size(node: Term, _: Sequence[Part]) -> Part:
    size = node.attrs[0]
    return size if isinstance(size, str) else f"|{size}|", ATOM


def _at(node: Term, parts: Sequence[Part]) -> Part:
    return f"{parts[0][0]}[{node.attrs[0]} = {parts[1][0]}]", ATOM


def _only(node: Term, parts: Sequence[Part]) -> Part:
    return f"({parts[1][0]} where {parts[0][0]})", ATOM


def _combined(_: Term, parts: Sequence[Part]) -> Part:
    return f"{_enclosed(parts[0], PRODUCT)} ⊕ {_enclosed(parts[1], PRODUCT)}", SUM


def _attribute_called(node: Term, parts: Sequence[Part]) -> Part:
    return _called(node.attrs[0], parts), ATOM


def _stored(node: Term, parts: Sequence[Part]) -> Part:
    return f"stored({parts[0][0]} as {node.attrs[0]})", ATOM


def _given(node: Term, parts: Sequence[Part]) -> Part:
    return f"given({', '.join([parts[0][0], *map(str, node.attrs)])})", ATOM


def _bound_pattern(node: Term, parts: Sequence[Part]) -> Part:
    return f"{node.op}({node.attrs[0]}: {parts[0][0]})", ATOM


def _scaled(_: Term, parts: Sequence[Part]) -> Part:
    return f"⟨{parts[0][0]}, {parts[1][0]}⟩", ATOM


# Operation: how a node of it is written. An operation without a row is written as a call of its name.
_WRITERS: dict[str, Callable[[Term, Sequence[Part]], Part]] = {
    "const": _constant,
    "load": _load,
    "reduce": _reduction,
    "neg": _negation,
    "stored": _stored,
    "given": _given,
    "scaled": _scaled,
    "size": _size,
    "at": _at,
    "only": _only,
    "combined": _combined,
    **dict.fromkeys(("iota", "var", "again"), _name),
    **dict.fromkeys(("cast", "apply"), _attribute_called),
    **dict.fromkeys(("exists", "recursive"), _bound_pattern),
}


def _text(node: Term, parts: Sequence[Part]) -> Part:
    """The node's text and its binding strength, from those of its arguments."""
    if node.op in _INFIX:
        sign, strength = _INFIX[node.op]
        return f"{_enclosed(parts[0], strength)} {sign} {_enclosed(parts[1], strength + 1)}", strength
    write = _WRITERS.get(node.op)
    return (_called(node.op, parts), ATOM) if write is None else write(node, parts)


def show(root: Term) -> str:
    """The whole term on one line.

    Written out, a term can double in length with each shared subterm. A long line therefore names shared subterms.
    """
    done: dict[Term, Part] = {}
    for node in subterms(root):
        done[node] = _text(node, [done[a] for a in node.args])
        if len(done[node][0]) > MAX_LINE_CHARACTERS:
            return show_where(root)
    return done[root][0]


def show_let(*roots: Term, least: int = 24) -> str:
    """One line for each shared subterm of more than `least` characters, then one line for each root."""
    nodes = list(dict.fromkeys(node for root in roots for node in subterms(root)))
    uses = Counter(a for node in nodes for a in node.args) + Counter(roots)
    done: dict[Term, Part] = {}
    lines: list[str] = []
    for node in nodes:
        text, strength = _text(node, [done[a] for a in node.args])
        if uses[node] > 1 and len(text) > least:
            name = f"t{len(lines)}"
            lines.append(f"{name} = {text}")
            text, strength = name, ATOM
        done[node] = (text, strength)
    return "\n".join([*lines, *(done[root][0] for root in roots)])


def show_where(root: Term) -> str:
    """The term on one line, with names for its shared subterms behind it: "t0 - max_j t0 where t0 = exp(x[j, k])"."""
    *named, result = show_let(root).splitlines()
    return result + (f" where {', '.join(named)}" if named else "")


def show_marked(root: Term, position: Sequence[int], marks: tuple[str, str], everywhere: bool = False) -> str:
    """The term on one line with a mark before and one behind the subterm at a path of argument numbers.

    everywhere: behind and before each occurrence of that subterm. Empty where the line would be too long.
    """
    path = [root]
    for number in position:
        path.append(path[-1].args[number])
    marked = lambda part: (f"{marks[0]}{part[0]}{marks[1]}", part[1])
    done: dict[Term, Part] = {}
    for node in subterms(root):
        made = _text(node, [done[a] for a in node.args])
        done[node] = marked(made) if everywhere and node is path[-1] else made
        if len(made[0]) > MAX_LINE_CHARACTERS:
            return ""
    if everywhere:
        return done[root][0]
    part = marked(done[path[-1]])
    for node, number in zip(path[-2::-1], position[::-1], strict=True):
        parts = [done[a] for a in node.args]
        parts[number] = part
        part = _text(node, parts)
    return part[0]


HOOKS["show"] = show

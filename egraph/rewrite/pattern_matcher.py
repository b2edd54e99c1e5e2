"""Matches patterns by backtracking: yields every match of a pattern on a term, lazily.

The pattern is read from left to right, and alternatives are tried in the order written. match.py matches plain
patterns. A test compares the matches, in order and number, with the definition in pattern_semantics.py. Example:
`either(x, exp(x))` matches exp(a) twice, with x = exp(a) and with x = a.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from ..terms.term import Term
from .match import Binding, bind, holds, match, match_attribute
from .pattern import fits_operator, is_plain

Recursions = Mapping[str, tuple[Term, int]]  # name of a recursive pattern: its body, and the fuel that is left


def matches(pattern: Term, target: Term, binding: Binding | None = None) -> Iterator[Binding]:
    """The bindings that make the pattern equal to the target and extend the given one. Equal bindings may repeat."""
    return _match(pattern, target, {} if binding is None else binding, {})


def _match(pattern: Term, target: Term, bound: Binding, recursions: Recursions) -> Iterator[Binding]:
    if is_plain(pattern):
        found = match(pattern, target, bound)
        return iter(() if found is None else (found,))
    return _MATCHERS.get(pattern.op, _operation)(pattern, target, bound, recursions)


def _all(pairs, bound: Binding, recursions: Recursions) -> Iterator[Binding]:
    """Matches pairs of pattern and target one after another: for each match of the first pair, those of the rest."""
    if not pairs:
        yield bound
        return
    (pattern, target), *rest = pairs
    for more in _match(pattern, target, bound, recursions):
        yield from _all(rest, more, recursions)


def _operation(pattern, target, bound, recursions):
    if pattern.op != target.op or len(pattern.args) != len(target.args):
        return
    for a, b in zip(pattern.attrs, target.attrs, strict=True):
        bound = match_attribute(a, b, bound)
        if bound is None:
            return
    yield from _all(list(zip(pattern.args, target.args)), bound, recursions)


def _apply(pattern, target, bound, recursions):
    if fits_operator(target) and len(pattern.args) == len(target.args):
        more = bind(bound, pattern.attrs[0].name, target.op)
        if more is not None:
            yield from _all(list(zip(pattern.args, target.args)), more, recursions)


def _either(pattern, target, bound, recursions):
    for alternative in pattern.args:
        yield from _match(alternative, target, bound, recursions)


def _also(pattern, target, bound, recursions):
    return _all([(part, target) for part in pattern.args], bound, recursions)


def _given(pattern, target, bound, recursions):
    for found in _match(pattern.args[0], target, bound, recursions):
        if all(holds(guard, found) for guard in pattern.attrs):
            yield found


def _exists(pattern, target, bound, recursions):
    local = set(pattern.attrs)
    outer = {name: value for name, value in bound.items() if name in local}
    inner = {name: value for name, value in bound.items() if name not in local}
    for found in _match(pattern.args[0], target, inner, recursions):
        yield {name: value for name, value in found.items() if name not in local} | outer


def _recursive(pattern, target, bound, recursions):
    name, fuel = pattern.attrs
    body = pattern.args[0]
    return _match(body, target, bound, {**recursions, name: (body, fuel - 1)})


def _again(pattern, target, bound, recursions):
    name = pattern.attrs[0]
    body, fuel = recursions[name]
    return _match(body, target, bound, {**recursions, name: (body, fuel - 1)}) if fuel else iter(())


_MATCHERS: dict[str, Callable[[Term, Term, Binding, Recursions], Iterator[Binding]]] = {
    "apply": _apply,
    "either": _either,
    "also": _also,
    "given": _given,
    "exists": _exists,
    "recursive": _recursive,
    "again": _again,
}

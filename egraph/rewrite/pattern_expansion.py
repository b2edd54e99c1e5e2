"""Expands a pattern into its readings: the plain terms with variables that it can stand for.

A reading fixes one alternative of each choice, one operation for each operator variable, and one number of unfoldings;
it keeps the guards that are still open. Together the readings match what the pattern matches. Example: the readings of
`either(exp(x), exp2(x))` are exp(x) and exp2(x).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

from ..terms.ops import MONOIDS, OPS
from ..terms.term import AttributeVariable, Dim, Term, TermError
from ..terms.traversal import rebuild, subterms
from .guard import CLASS_GUARDS, GUARDS, Guard
from .match import instantiate
from .pattern import OPERATORS, build, is_plain
from .rule import variables_of


@dataclass(frozen=True)
class Reading:
    """A plain left side. `known`: the values of operators, monoids and unified variables. `label`: parts of a name."""

    left: Term
    known: dict
    guards: tuple[Guard, ...]
    label: tuple[str, ...]


@dataclass(frozen=True)
class _State:
    """The choices so far, from left to right.

    known: values of variables. equal: pairs of terms that `also` makes equal. locals: how many `exists` were met, so
    that each local gets a new name.
    """

    known: dict = field(default_factory=dict)
    equal: tuple[tuple[Term, Term], ...] = ()
    guards: tuple[Guard, ...] = ()
    label: tuple[str, ...] = ()
    locals: int = 0


def readings(left: Term, guards: tuple[Guard, ...] = (), most: int | None = None) -> Iterator[Reading]:
    """The readings of a pattern under guards, in order, lazily; at most `most` of them."""
    return islice(_readings(left, guards), most)


def _readings(left: Term, guards: tuple[Guard, ...]) -> Iterator[Reading]:
    guarded = {o.name for g in (*guards, *_inner_guards(left)) if g.kind in CLASS_GUARDS for o in g.operands}
    for term, state in _Reader(guarded).read(left, _State(guards=guards), {}):
        known = _unified(state.equal, state.known)
        remaining = None if known is None else _remaining(state.guards, known)
        if remaining is not None:
            try:
                plain = filled(term, known)
            except TermError:  # these operations do not take these operands
                continue
            yield Reading(plain, known, remaining, state.label)


def filled(pattern: Any, known: Mapping[str, object]) -> Any:
    """The pattern, guard or attribute with known variables replaced; other variables stay."""
    match pattern:
        case Guard():
            return Guard(pattern.kind, tuple(filled(o, known) for o in pattern.operands))
        case Dim():
            return known.get(f"dim {pattern.name}", pattern) if pattern.size is None else pattern
        case AttributeVariable():
            return known.get(pattern.name, pattern)
        case Term():
            return rebuild(pattern, lambda node, args: _filled_node(node, args, known))
    return pattern


def _filled_node(node: Term, args, known: Mapping[str, Any]) -> Term:
    if node.op == "var":
        return known.get(node.attrs[0], node)
    if node.op == "at" and args[0].op != "var":  # only laws say it, and of variables
        return node
    return build(node.op, args, tuple(filled(a, known) for a in node.attrs))


def _inner_guards(pattern: Term) -> list[Guard]:
    return [a for node in subterms(pattern) for a in node.attrs if isinstance(a, Guard)]


def _remaining(guards, known: dict) -> tuple[Guard, ...] | None:
    """The guards that are still open; None if a guard is decided and does not hold."""
    open_guards = []
    for guard in (filled(g, known) for g in guards):
        if guard.kind not in CLASS_GUARDS:
            open_guards.append(guard)
        elif not GUARDS[guard.kind].holds(*guard.operands):
            return None
    return tuple(dict.fromkeys(open_guards))


@dataclass(frozen=True)
class _Reader:
    """`guarded`: the attribute variables in class guards. The monoids among them are chosen; others stay variables."""

    guarded: set[str]

    def read(self, pattern: Term, state: _State, recursions: dict) -> Iterator[tuple[Term, _State]]:
        """The plain terms of the pattern, each with the state after it. `recursions`: name to body and fuel left."""
        if is_plain(pattern) and not variables_of(pattern) & self.guarded:
            yield pattern, state
            return
        match pattern.op:
            case "either":
                for number, alternative in enumerate(pattern.args, 1):
                    yield from self.read(alternative, _labelled(state, str(number)), recursions)
            case "also":
                for (first, *others), after in self.read_all(pattern.args, state, recursions):
                    yield first, replace(after, equal=(*after.equal, *((first, other) for other in others)))
            case "given":
                for term, after in self.read(pattern.args[0], state, recursions):
                    yield term, replace(after, guards=(*after.guards, *pattern.attrs))
            case "exists":
                body, after = _renamed(pattern, state)
                yield from self.read(body, after, recursions)
            case "recursive":
                name, fuel = pattern.attrs
                yield from self.read(pattern.args[0], state, {**recursions, name: (pattern.args[0], fuel - 1)})
            case "again":
                body, fuel = recursions[pattern.attrs[0]]
                if fuel:
                    yield from self.read(body, state, {**recursions, pattern.attrs[0]: (body, fuel - 1)})
            case _:
                yield from self.read_operation(pattern, state, recursions)

    def read_all(
        self, patterns: Sequence[Term], state: _State, recursions: dict
    ) -> Iterator[tuple[tuple[Term, ...], _State]]:
        """Plain terms for all the patterns, read from left to right."""
        if not patterns:
            yield (), state
            return
        for first, after in self.read(patterns[0], state, recursions):
            for others, last in self.read_all(patterns[1:], after, recursions):
                yield (first, *others), last

    def read_operation(self, pattern: Term, state: _State, recursions: dict) -> Iterator[tuple[Term, _State]]:
        """The plain terms of an operation, for every choice of its operator or monoid."""
        for chosen in self.choices(pattern, state):
            for args, after in self.read_all(pattern.args, chosen, recursions):
                try:
                    yield build(pattern.op, args, tuple(filled(a, after.known) for a in pattern.attrs)), after
                except TermError:
                    continue

    def choices(self, pattern: Term, state: _State) -> Iterator[_State]:
        """The states in which the operator or monoid of this node has a value."""
        variable = self._chosen_variable(pattern)
        if variable is None or variable in state.known:
            yield state
            return
        fitting = [op for op in OPERATORS if OPS[op].arity == len(pattern.args)]
        for value in fitting if pattern.op == "apply" else MONOIDS:
            chosen = replace(state, known={**state.known, variable: value})
            if not any(self.refutes(guard, chosen) for guard in state.guards):
                yield _labelled(chosen, value)

    def _chosen_variable(self, pattern: Term) -> str | None:
        """The attribute variable of a node that a reading must give a value; None if there is none."""
        names = (a.name for a in pattern.attrs if isinstance(a, AttributeVariable))
        chosen = (n for n in names if pattern.op == "apply" or (pattern.op == "reduce" and n in self.guarded))
        return next(chosen, None)

    def refutes(self, guard: Guard, state: _State) -> bool:
        """Whether the state decides the guard, and it does not hold."""
        decided = guard.kind in CLASS_GUARDS and all(o.name in state.known for o in guard.operands)
        return decided and not GUARDS[guard.kind].holds(*(instantiate(o, state.known) for o in guard.operands))


def _labelled(state: _State, label: str) -> _State:
    return replace(state, label=(*state.label, label))


def _renamed(pattern: Term, state: _State) -> tuple[Term, _State]:
    """The body of `exists` with new names for its locals."""
    fresh: dict[str, object] = {}
    for node in subterms(pattern.args[0]):
        for value in (node, *node.attrs):
            if isinstance(value, Term) and value.op == "var" and value.attrs[0] in pattern.attrs:
                fresh[value.attrs[0]] = build("var", (), (f"{value.attrs[0]}_{state.locals}", value.attrs[1]))
            elif isinstance(value, Dim) and f"dim {value.name}" in pattern.attrs:
                fresh[f"dim {value.name}"] = Dim(f"{value.name}_{state.locals}")
            elif isinstance(value, AttributeVariable) and value.name in pattern.attrs:
                fresh[value.name] = type(value)(f"{value.name}_{state.locals}")
    return filled(pattern.args[0], fresh), replace(state, locals=state.locals + 1)


# Unification, for `also` ---------------------------------------------------------------------------------------------


def _unified(pairs, known: dict) -> dict | None:
    """The most general values of variables that make each pair equal, added to `known`; None if there are none."""
    waiting = list(pairs)
    while waiting:
        a, b = (filled(x, known) for x in waiting.pop())
        if a is b or a == b:
            continue
        if _name(a) is None or _takes_any_dtype(b):
            a, b = b, a
        name = _name(a)
        if name is not None and _may_become(a, b):
            known = {n: filled(v, {name: b}) for n, v in known.items()} | {name: b}
        elif name is None and _same_operation(a, b):
            waiting += zip((*a.args, *a.attrs), (*b.args, *b.attrs))
        else:
            return None
    return known


def _takes_any_dtype(x: object) -> bool:
    return isinstance(x, Term) and x.op == "var" and x.attrs[1] == "any"


def _may_become(variable: Any, value: Any) -> bool:
    """Whether the value does not contain the variable, and has its dtype."""
    contains = _name(variable) in variables_of(value)
    return not contains and (not isinstance(variable, Term) or variable.attrs[1] in ("any", value.dtype))


def _same_operation(a: object, b: object) -> bool:
    return isinstance(a, Term) and isinstance(b, Term) and (a.op, len(a.args)) == (b.op, len(b.args))


def _name(x: object) -> str | None:
    """The name of a variable in a binding; None for anything else."""
    if isinstance(x, Term):
        return x.attrs[0] if x.op == "var" else None
    if isinstance(x, Dim):
        return f"dim {x.name}" if x.size is None else None
    return x.name if isinstance(x, AttributeVariable) else None

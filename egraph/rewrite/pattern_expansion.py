"""The readings of a pattern: every plain term with variables that it can stand for, with the guards that then remain.

A reading takes one alternative of each choice, one operation for each operator variable, one number of unfoldings.
Together they match what the pattern matches. Ordinary rules, samples and proofs are made from them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import islice

from ..terms.ops import MONOIDS, OPS
from ..terms.term import AttributeVariable, Dim, Term, TermError
from ..terms.traversal import rebuild, subterms
from .guard import CLASS_GUARDS, GUARDS, Guard
from .match import instantiate
from .pattern import OPERATORS, build, is_plain
from .rule import variables_of


@dataclass(frozen=True)
class Reading:
    """`left` is plain; `known` says what operators, monoids and unified variables have become; `label` is for names."""

    left: Term
    known: dict
    guards: tuple[Guard, ...]
    label: tuple[str, ...]


@dataclass(frozen=True)
class _State:
    """What has been chosen so far, from left to right; `locals` counts the locals met, so that each has a new name."""

    known: dict = field(default_factory=dict)
    equal: tuple[tuple[Term, Term], ...] = ()
    guards: tuple[Guard, ...] = ()
    label: tuple[str, ...] = ()
    locals: int = 0


def readings(left: Term, guards: tuple[Guard, ...] = (), most: int | None = None) -> Iterator[Reading]:
    """The readings of a pattern under guards, in order, lazily; at most so many."""
    return islice(_readings(left, guards), most)


def _readings(left: Term, guards: tuple[Guard, ...]) -> Iterator[Reading]:
    asked = {o.name for g in (*guards, *_inner_guards(left)) if g.kind in CLASS_GUARDS for o in g.operands}
    for term, state in _Reader(asked).read(left, _State(guards=guards), {}):
        known = _unified(state.equal, state.known)
        remaining = None if known is None else _remaining(state.guards, known)
        if remaining is not None:
            try:
                plain = filled(term, known)
            except TermError:  # operands that this choice of operations does not take
                continue
            yield Reading(plain, known, remaining, state.label)


def filled(pattern, known: dict):
    """A pattern, guard or attribute with the known variables replaced and the others kept."""
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


def _filled_node(node: Term, args, known: dict) -> Term:
    if node.op == "var":
        return known.get(node.attrs[0], node)
    return build(node.op, args, tuple(filled(a, known) for a in node.attrs))


def _inner_guards(pattern: Term) -> list[Guard]:
    return [a for node in subterms(pattern) for a in node.attrs if isinstance(a, Guard)]


def _remaining(guards, known: dict) -> tuple[Guard, ...] | None:
    """The guards that are still open; None if one is decided and does not hold."""
    open_guards = []
    for guard in (filled(g, known) for g in guards):
        if guard.kind not in CLASS_GUARDS:
            open_guards.append(guard)
        elif not GUARDS[guard.kind].holds(*guard.operands):
            return None
    return tuple(dict.fromkeys(open_guards))


@dataclass(frozen=True)
class _Reader:
    """`asked` names the attribute variables of class guards: monoids among them are chosen, others stay variables."""

    asked: set[str]

    def read(self, pattern: Term, state: _State, recursions: dict) -> Iterator[tuple[Term, _State]]:
        """Plain terms for the pattern, each with the state after it."""
        if is_plain(pattern) and not variables_of(pattern) & self.asked:
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

    def read_all(self, patterns, state: _State, recursions: dict) -> Iterator[tuple[tuple[Term, ...], _State]]:
        if not patterns:
            yield (), state
            return
        for first, after in self.read(patterns[0], state, recursions):
            for others, last in self.read_all(patterns[1:], after, recursions):
                yield (first, *others), last

    def read_operation(self, pattern: Term, state: _State, recursions: dict) -> Iterator[tuple[Term, _State]]:
        for chosen in self.choices(pattern, state):
            for args, after in self.read_all(pattern.args, chosen, recursions):
                try:
                    yield build(pattern.op, args, tuple(filled(a, after.known) for a in pattern.attrs)), after
                except TermError:
                    continue

    def choices(self, pattern: Term, state: _State) -> Iterator[_State]:
        """The states in which the operator or monoid of this node is chosen."""
        asked = [a for a in pattern.attrs if isinstance(a, AttributeVariable)]
        asked = [a for a in asked if pattern.op == "apply" or (pattern.op == "reduce" and a.name in self.asked)]
        if not asked or asked[0].name in state.known:
            yield state
            return
        fitting = [op for op in OPERATORS if OPS[op].arity == len(pattern.args)]
        for value in fitting if pattern.op == "apply" else MONOIDS:
            chosen = replace(state, known={**state.known, asked[0].name: value})
            if not any(self.refutes(guard, chosen) for guard in state.guards):
                yield _labelled(chosen, value)

    def refutes(self, guard: Guard, state: _State) -> bool:
        decided = guard.kind in CLASS_GUARDS and all(o.name in state.known for o in guard.operands)
        return decided and not GUARDS[guard.kind].holds(*(instantiate(o, state.known) for o in guard.operands))


def _labelled(state: _State, label: str) -> _State:
    return replace(state, label=(*state.label, label))


def _renamed(pattern: Term, state: _State) -> tuple[Term, _State]:
    """The body of `exists`, with new names for its locals."""
    fresh = {}
    for node in subterms(pattern.args[0]):
        for value in (node, *node.attrs):
            if isinstance(value, Term) and value.op == "var" and value.attrs[0] in pattern.attrs:
                fresh[value.attrs[0]] = build("var", (), (f"{value.attrs[0]}_{state.locals}", value.attrs[1]))
            elif isinstance(value, Dim) and f"dim {value.name}" in pattern.attrs:
                fresh[f"dim {value.name}"] = Dim(f"{value.name}_{state.locals}")
            elif isinstance(value, AttributeVariable) and value.name in pattern.attrs:
                fresh[value.name] = type(value)(f"{value.name}_{state.locals}")
    return filled(pattern.args[0], fresh), replace(state, locals=state.locals + 1)


# Unification: what `also` asks for --------------------------------------------------------------------------------


def _unified(pairs, known: dict) -> dict | None:
    """The most general values of variables under which each pair is equal, beyond what is known; None if none are."""
    waiting = list(pairs)
    while waiting:
        a, b = (filled(x, known) for x in waiting.pop())
        if a is b or a == b:
            continue
        if _name(a) is None or (isinstance(b, Term) and b.op == "var" and b.attrs[1] == "any"):
            a, b = b, a
        name = _name(a)
        if name is not None:
            if name in variables_of(b) or (isinstance(a, Term) and a.attrs[1] not in ("any", b.dtype)):
                return None  # it would contain itself, or is of another dtype
            known = {n: filled(v, {name: b}) for n, v in known.items()} | {name: b}
        elif isinstance(a, Term) and isinstance(b, Term) and (a.op, len(a.args)) == (b.op, len(b.args)):
            waiting += zip((*a.args, *a.attrs), (*b.args, *b.attrs))
        else:
            return None
    return known


def _name(x) -> str | None:
    """What a variable is called in a binding; None for anything else."""
    if isinstance(x, Term):
        return x.attrs[0] if x.op == "var" else None
    if isinstance(x, Dim):
        return f"dim {x.name}" if x.size is None else None
    return x.name if isinstance(x, AttributeVariable) else None

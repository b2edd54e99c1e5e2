"""A rule whose left side is a pattern, with one or more right sides. A right side may be code, and code may decline.

`@rule` makes this record where a plain Rule is not enough, and rejects it with the same errors. A record that exists
is well-formed. `applications` gives its results for the root of a term. Example: the left side
`either(x + x, 2.0 * x)` with the right side `x * 2.0`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from ..forks import cached_property
from ..terms.term import Term, TermError
from ..terms.traversal import subterms
from .guard import Guard
from .match import Binding, holds, instantiate
from .pattern import CONSTRUCTS, parts
from .pattern_expansion import Reading, filled, readings
from .pattern_matcher import matches
from .pattern_semantics import free_variables
from .rule import EXACTNESS, LAMBDA, MISSING_LAW, Rule, RuleError, defined_alike, unknown_exactness, variables_of

MAX_READINGS = 128  # a pattern with more readings is not expanded; it is matched on the terms of a region


@dataclass(frozen=True)
class Declined:
    """The result of a right side that does not apply, with the reason."""

    reason: str


def decline(reason: str) -> Declined:
    """For the code of a right side: `return decline("why")` where the rule does not apply."""
    return Declined(reason)


@dataclass(frozen=True)
class Application:
    """One match at the root of a term with one result: a right side, or the reason that there is none."""

    binding: Binding
    result: Term | Declined


@dataclass(frozen=True)
class PatternRule:
    """A law `left = right` for every match of the pattern for which every guard holds, and for every right side.

    rights: terms over the pattern's variables, or functions that get the variables they name (a dim j by its name) and
    return a term, several, or `decline(reason)`. device: the only device type on which the law is used, or None.
    """

    name: str
    law: str
    left: Term
    rights: tuple[Term | Callable, ...]
    variables: tuple[tuple[str, str], ...]
    guards: tuple[Guard, ...] = ()
    exact: str = "reassociates"
    source: str = ""
    trusted: bool = False
    device: str | None = None

    def __post_init__(self):
        _refuse_bad(self)

    def __str__(self) -> str:
        guards = f"   when {', '.join(map(str, self.guards))}" if self.guards else ""
        return f"{self.name}: {self.left} = {' or '.join(map(_right_text, self.rights))}{guards}"

    both = False  # a pattern is used from left to right only

    @property
    def defined_alike(self) -> bool:
        """Whether both sides are NaN at the same places; else the right side may be a number where the left is NaN."""
        return defined_alike(self.exact)

    @property
    def assumption(self) -> str | None:
        """The named assumption under which the law holds; None for "bitwise" and "reassociates"."""
        return None if self.exact in EXACTNESS else self.exact

    @property
    def has_code(self) -> bool:
        """Whether a right side is code. Code cannot be sent to another process, only its results can."""
        return any(not isinstance(right, Term) for right in self.rights)

    def applications(self, target: Term) -> Iterator[Application]:
        """Every match at the root of the target, with every result. Raises RuleError if the code of a side fails."""
        for binding in matches(self.left, target):
            if self.allows(binding):
                for right in self.rights:
                    yield from (Application(binding, result) for result in self.results(right, binding))

    def allows(self, binding: Binding) -> bool:
        """Whether every guard holds for the binding."""
        return all(holds(guard, binding) for guard in self.guards)

    @cached_property
    def rules(self) -> tuple[Rule, ...] | None:
        """The equivalent plain rules, one for each reading and right side; None for code and for too many readings."""
        found = tuple(readings(self.left, self.guards, MAX_READINGS + 1))
        if self.has_code or len(found) > MAX_READINGS:
            return None
        made = [_plain_rule(self, reading, n) for reading in found for n in range(len(self.rights))]
        return tuple(rule for rule in made if rule is not None)

    def results(self, right: Term | Callable, binding: Binding) -> list[Term | Declined]:
        """The results of a right side for a binding. An ill-typed result counts as declined."""
        try:
            if isinstance(right, Term):
                return [instantiate(right, binding)]
            found = right(**{name: binding[_bound_name(name, binding)] for name in _parameters(right)})
        except TermError as error:
            return [Declined(f"the right side means nothing here: {error}")]
        except Exception as error:
            raise RuleError(f"rule {self.name} ({_place(right)}): the right side failed: {error!r}") from error
        found = list(found) if isinstance(found, (list, tuple)) else [found]
        for result in found:
            if not isinstance(result, Term | Declined):
                raise RuleError(f"rule {self.name} ({_place(right)}): the right side gave {result!r}, which is no term")
        return found


def _plain_rule(r: PatternRule, reading: Reading, number: int) -> Rule | None:
    """The rule of one reading and one right side; None if its sides are equal, or the right side is ill-typed."""
    label = (*reading.label, *([f"right {number + 1}"] if len(r.rights) > 1 else []))
    try:
        right = filled(r.rights[number], reading.known)
    except TermError:
        return None
    if right is reading.left:
        return None
    used = variables_of(reading.left)
    declared = tuple((name, kind) for name, kind in r.variables if name in used)
    name = f"{r.name}[{', '.join(label)}]" if label else r.name
    return Rule(name, r.law, reading.left, right, declared, reading.guards, False, r.exact, r.source, r.trusted)


def always_bound(pattern: object) -> frozenset[str]:
    """The variables that every match of the pattern binds."""
    return _always(pattern, free_variables(pattern))


def _always(pattern, everything: frozenset[str]) -> frozenset[str]:
    if not isinstance(pattern, Term) or pattern.op == "var":
        return free_variables(pattern)
    inner = [_always(a, everything) for a in pattern.args]
    match pattern.op:
        case "again":  # only the alternative that ends the recursion decides
            return everything
        case "either":
            return frozenset.intersection(*inner)
        case "given" | "recursive":
            return inner[0]
        case "exists":
            return inner[0] - set(pattern.attrs)
    return frozenset().union(*inner, *(free_variables(a) for a in pattern.attrs))


def _parameters(right: Callable) -> tuple[str, ...]:
    return tuple(inspect.signature(right).parameters)


def _bound_name(name: str, bound) -> str:
    return name if name in bound else f"dim {name}"


def _place(right: Any) -> str:
    return f"{right.__code__.co_filename}:{right.__code__.co_firstlineno}"


def _right_text(right: Term | Callable) -> str:
    return str(right) if isinstance(right, Term) else f"{getattr(right, '__name__', 'code')}(…)"


# Refusals ------------------------------------------------------------------------------------------------------------


def _refuse_bad(r: PatternRule) -> None:
    for why in (*unknown_exactness(r.exact), *_ill_formed(r.left), *_ill_bound(r), *_ill_sided(r)):
        raise RuleError(f"rule {r.name} ({r.source}): {why}")


def _ill_formed(pattern: Term, recursions=frozenset(), local=frozenset(), free=None) -> Iterator[str]:
    """Complaints about the constructs of a pattern: undefined or clashing names, guards on unbound variables."""
    free = free_variables(pattern) if free is None else free
    match pattern.op:
        case "again" if pattern.attrs[0] not in recursions:
            yield f"{pattern.attrs[0]!r} is used outside of its recursive pattern"
        case "recursive":
            if pattern.attrs[0] in recursions:
                yield f"two recursive patterns, one inside the other, are named {pattern.attrs[0]!r}"
            recursions |= {pattern.attrs[0]}
        case "exists":
            for name in sorted(set(pattern.attrs) & (local | free)):
                yield f"the local {name!r} is the name of another variable, too"
            local |= set(pattern.attrs)
        case "given":
            bound = always_bound(pattern.args[0])
            for guard in pattern.attrs:
                for name in sorted(free_variables(guard) - bound):
                    yield f"guard «{guard}» mentions {name!r}, which its pattern does not bind in every alternative"
    for part in pattern.args:
        yield from _ill_formed(part, recursions, local, free)


def _ill_bound(r: PatternRule) -> Iterator[str]:
    bound, used = always_bound(r.left), free_variables(r.left)
    for name in sorted({v for v, _ in r.variables} - used - {d.removeprefix("dim ") for d in used}):
        yield f"variable {name!r} is declared and the left side never uses it"
    for guard in r.guards:
        for name in sorted(free_variables(guard) - bound):
            yield f"guard «{guard}» mentions {name!r}, which the left side does not bind in every alternative"
    for right in r.rights:
        for name in sorted(free_variables(right) - bound if isinstance(right, Term) else ()):
            yield f"variable {name!r} of the right side is not bound by every alternative of the left side"
        for name in () if isinstance(right, Term) else _parameters(right):
            if _bound_name(name, bound) not in bound:
                where = _place(right)
                yield f"parameter {name!r} of the right side ({where}) is not bound by every alternative of the left"


def _ill_sided(r: PatternRule) -> Iterator[str]:
    if not r.law:
        yield MISSING_LAW[r.name == LAMBDA]
    if not r.rights:
        yield "there is no right side"
    if any(node.op == "var" for node in _roots(r.left)):
        yield "the left side can be a bare variable: it would match everything"
    for right in r.rights:
        if right is r.left:
            yield "both sides are the same term"
        for node in subterms(right) if isinstance(right, Term) else ():
            if node.op in CONSTRUCTS and node.op != "apply":
                yield f"{node.op!r} belongs on the left side: a right side is one term, or code"


def _roots(pattern: Term) -> Iterator[Term]:
    """The nodes that can be the root of a match; for `also`, those of a part that cannot be a bare variable, if any."""
    if pattern.op == "also":
        narrow = [list(_roots(part)) for part in pattern.args]
        yield from next((roots for roots in narrow if all(n.op != "var" for n in roots)), narrow[0])
    elif parts(pattern):
        for part in parts(pattern):
            yield from _roots(part)
    else:
        yield pattern

"""Constructs of patterns beyond terms with variables: operator variables, alternatives, recursion, locals, guards.

A pattern is a Term. The constructs are nodes that only patterns have, so they mix with the constructors of
terms/ops.py. pattern_semantics.py defines what they mean; pattern_matcher.py matches them. Example:
`either(exp(x), exp2(x))` matches both exponentials.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from ..terms.ops import OPS, Operand, make, term, var
from ..terms.term import PAIR, AttributeVariable, Dim, Term, TermError
from ..terms.traversal import subterms
from .guard import Guard
from .rule import NEW_DIM

CONSTRUCTS = ("apply", "either", "also", "given", "exists", "recursive", "again")
OPERATORS = tuple(
    row.name for row in OPS.values() if row.meaning and not row.attributes and row.dtype not in ("pair", "unpair")
)  # the pointwise operations: what an operator variable can stand for


@dataclass(frozen=True)
class OperatorVariable(AttributeVariable):
    """A variable for a pointwise operation. A call of it with patterns is a pattern: `f(x, y)`."""

    def __call__(self, *args: Operand) -> Term:
        if not args:
            raise TermError(f"operator variable {self.name} needs an operand")
        return build("apply", tuple(map(term, args)), (self,))


def either(*patterns: Operand) -> Term:
    """Alternatives, tried in this order: the matches of each of the patterns."""
    if len(patterns) < 2:
        raise TermError("either takes two patterns or more")
    return build("either", tuple(map(term, patterns)), ())


def also(pattern: Operand, *others: Operand) -> Term:
    """One subterm that all these patterns match. For example `also(x, exp(y))` binds x to an exponential."""
    if not others:
        raise TermError("also takes two patterns or more")
    return build("also", tuple(map(term, (pattern, *others))), ())


def given(pattern: Operand, *guards: Guard) -> Term:
    """The pattern, where the guards hold. A guard may mention only variables that this pattern binds."""
    for guard in guards:
        if not isinstance(guard, Guard):
            raise TermError(f"given takes guards after the pattern, not {guard!r}")
    return build("given", (term(pattern),), guards)


def exists(write: Callable, **kinds: str) -> Term:
    """A pattern with local variables, which bind nothing outside of it: `write` makes it of them.

    Each parameter of `write` is a local. `kinds` may make one an "operator", "monoid", "dtype", "dim", or "index".
    """
    names = tuple(inspect.signature(write).parameters)
    local = {name: variable(name, kinds.get(name, "")) for name in names}
    bound = tuple(f"dim {name}" if kinds.get(name) == "dim" else name for name in names)
    return build("exists", (term(write(**local)),), bound)


def recursive(write: Callable, fuel: int = 4) -> Term:
    """A pattern that mentions itself, such as `recursive(lambda again: either(x, exp(again)))`.

    At most `fuel` unfoldings are nested. Raises TermError if the pattern could unfold without an operation in between.
    """
    (name,) = inspect.signature(write).parameters
    if not isinstance(fuel, int) or fuel < 1:
        raise TermError(f"the fuel of {name!r} is a number of unfoldings, not {fuel!r}")
    body = term(write(build("again", (), (name,))))
    if name in _unguarded(body):
        raise TermError(f"{name!r} stands for itself: put an operation around it")
    return build("recursive", (body,), (name, fuel))


def variable(name: str, kind: str) -> Term | Dim | AttributeVariable:
    """The pattern variable for a parameter of a rule; `kind` is the annotation of the parameter."""
    if kind == "operator":
        return OperatorVariable(name)
    if kind in ("dtype", "monoid", "name"):
        return AttributeVariable(name)
    if kind in ("dim", NEW_DIM):
        return Dim(name)
    kinds = kind.split()  # "index constant" is an integer, too
    return var(name, "int64" if "index" in kinds else "bool" if "predicate" in kinds else "any")


def build(op: str, args: tuple[Term, ...], attrs: tuple) -> Term:
    """`make` for patterns. An `apply` of an operation's name, instead of an operator variable, is that operation."""
    if op == "apply" and isinstance(attrs[0], str):
        return make(attrs[0], args)
    if op not in CONSTRUCTS:
        return make(op, args, attrs)
    kinds = {a.dtype for a in args}
    known = op != "apply" and len(kinds) == 1
    return Term(op, args, attrs, dims=frozenset().union(*(a.dims for a in args)), dtype=kinds.pop() if known else "any")


@lru_cache(1024)
def is_plain(pattern: Term) -> bool:
    """Whether the pattern is a term with variables, without any construct."""
    return not any(node.op in CONSTRUCTS for node in subterms(pattern))


def fits_operator(node: Term) -> bool:
    """Whether an operator variable can stand for the operation of the node."""
    return node.op in OPERATORS and not any(a.dtype.startswith(PAIR) for a in node.args)


def parts(pattern: Term) -> tuple[Term, ...]:
    """The patterns inside a construct that match the same subterm as the construct; none for an operation."""
    return pattern.args if pattern.op in CONSTRUCTS and pattern.op != "apply" else ()


def _unguarded(pattern: Term) -> set[str]:
    """The names of recursive patterns that the pattern can enter without an operation in between."""
    inner = set().union(*map(_unguarded, parts(pattern)))
    if pattern.op == "again":
        return {pattern.attrs[0]}
    return inner - {pattern.attrs[0]} if pattern.op == "recursive" else inner

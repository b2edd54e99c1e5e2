"""What a pattern may say beyond a term with variables: operator variables, alternatives, recursion, locals, guards.

A pattern is a Term: the constructs are nodes that only patterns have, so a law is written with the operators and
constructors of egraph/terms/ops.py. What they mean is said in pattern_semantics.py, how they are matched in
pattern_matcher.py.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from ..terms.ops import OPS, make, term, var
from ..terms.term import PAIR, AttributeVariable, Dim, Term, TermError
from ..terms.traversal import subterms
from .guard import Guard

CONSTRUCTS = ("apply", "either", "also", "given", "exists", "recursive", "again")
OPERATORS = tuple(
    row.name for row in OPS.values() if row.meaning and not row.attributes and row.dtype not in ("pair", "unpair")
)  # what an operator variable stands for: the pointwise operations


@dataclass(frozen=True)
class OperatorVariable(AttributeVariable):
    """Stands for a pointwise operation; called with patterns, it is that operation of them."""

    def __call__(self, *args) -> Term:
        if not args:
            raise TermError(f"operator variable {self.name} needs an operand")
        return build("apply", tuple(map(term, args)), (self,))


def either(*patterns) -> Term:
    """Any of the patterns, tried in this order; every one that matches gives its matches."""
    if len(patterns) < 2:
        raise TermError("either takes two patterns or more")
    return build("either", tuple(map(term, patterns)), ())


def also(pattern, *others) -> Term:
    """One subterm that every one of these patterns matches: `also(x, exp(y))` names what is matched."""
    if not others:
        raise TermError("also takes two patterns or more")
    return build("also", tuple(map(term, (pattern, *others))), ())


def given(pattern, *guards: Guard) -> Term:
    """The pattern, where the guards hold; each mentions only variables that this pattern binds."""
    for guard in guards:
        if not isinstance(guard, Guard):
            raise TermError(f"given takes guards after the pattern, not {guard!r}")
    return build("given", (term(pattern),), guards)


def exists(write: Callable, **kinds: str) -> Term:
    """The pattern that `write` makes of variables of its own, which bind nothing outside.

    Each parameter is a local; `kinds` may call one an "operator", "monoid", "dtype", "dim", or "index".
    """
    names = tuple(inspect.signature(write).parameters)
    local = {name: variable(name, kinds.get(name, "")) for name in names}
    bound = tuple(f"dim {name}" if kinds.get(name) == "dim" else name for name in names)
    return build("exists", (term(write(**local)),), bound)


def recursive(write: Callable, fuel: int = 4) -> Term:
    """A pattern that mentions itself: `recursive(lambda again: either(x, exp(again)))`.

    It is unfolded at most `fuel` times, one inside another. Raises TermError if it could unfold in place for ever.
    """
    (name,) = inspect.signature(write).parameters
    if not isinstance(fuel, int) or fuel < 1:
        raise TermError(f"the fuel of {name!r} is a number of unfoldings, not {fuel!r}")
    body = term(write(build("again", (), (name,))))
    if name in _unguarded(body):
        raise TermError(f"{name!r} stands for itself: put an operation around it")
    return build("recursive", (body,), (name, fuel))


def variable(name: str, kind: str):
    """The variable that a parameter of this kind is; kinds are the annotations of a rule's parameters."""
    if kind == "operator":
        return OperatorVariable(name)
    if kind in ("dtype", "monoid"):
        return AttributeVariable(name)
    if kind == "dim":
        return Dim(name)
    kinds = kind.split()  # "index constant" is an integer, too
    return var(name, "int64" if "index" in kinds else "bool" if "predicate" in kinds else "any")


def build(op: str, args: tuple[Term, ...], attrs: tuple) -> Term:
    """`make` for patterns. An operator variable that has become the name of an operation gives that operation."""
    if op == "apply" and isinstance(attrs[0], str):
        return make(attrs[0], args)
    if op not in CONSTRUCTS:
        return make(op, args, attrs)
    kinds = {a.dtype for a in args}
    known = op != "apply" and len(kinds) == 1
    return Term(op, args, attrs, dims=frozenset().union(*(a.dims for a in args)), dtype=kinds.pop() if known else "any")


@lru_cache(1024)
def is_plain(pattern: Term) -> bool:
    """Whether the pattern is a term with variables and nothing more."""
    return not any(node.op in CONSTRUCTS for node in subterms(pattern))


def fits_operator(node: Term) -> bool:
    """Whether a node's operation is one that an operator variable can stand for."""
    return node.op in OPERATORS and not any(a.dtype.startswith(PAIR) for a in node.args)


def parts(pattern: Term) -> tuple[Term, ...]:
    """The patterns that a construct holds for the very subterm it matches; none for an operation."""
    return pattern.args if pattern.op in CONSTRUCTS and pattern.op != "apply" else ()


def _unguarded(pattern: Term) -> set[str]:
    """Names of recursions that the pattern could enter without an operation in between."""
    inner = set().union(*map(_unguarded, parts(pattern)))
    if pattern.op == "again":
        return {pattern.attrs[0]}
    return inner - {pattern.attrs[0]} if pattern.op == "recursive" else inner

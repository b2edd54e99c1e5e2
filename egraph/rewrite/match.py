"""Syntactic matching and instantiation of patterns, and rewriting of one term by one rule.

Declarative and small on purpose: the normaliser, the certificate checker and the tests of the e-graph engine rely on
it. A binding maps variable names to terms, "dim j" to dims, and attribute variables to plain values.
"""

from __future__ import annotations

from ..terms.term import AttributeVariable, Dim, Term
from ..terms.traversal import rebuild
from .guard import GUARDS, Guard
from .pattern import build
from .rule import Rule

Binding = dict[str, object]


def match(pattern: Term, target: Term, binding: Binding | None = None) -> Binding | None:
    """The binding under which the pattern is the target, extending the one given; None if there is none."""
    bound = {} if binding is None else binding
    if pattern.op == "var":
        return bind(bound, pattern.attrs[0], target) if _admits(pattern, target) else None
    if pattern.op != target.op or len(pattern.args) != len(target.args):
        return None
    for a, b in zip(pattern.attrs, target.attrs, strict=True):
        bound = match_attribute(a, b, bound)
        if bound is None:
            return None
    for a, b in zip(pattern.args, target.args, strict=True):
        bound = match(a, b, bound)
        if bound is None:
            return None
    return bound


def _admits(pattern: Term, target: Term) -> bool:
    return pattern.attrs[1] == "any" or pattern.attrs[1] == target.dtype


def match_attribute(a, b, bound: Binding) -> Binding | None:
    """The binding under which a pattern's attribute is the other one."""
    if isinstance(a, Dim) and a.size is None:
        return bind(bound, f"dim {a.name}", b)
    if isinstance(a, AttributeVariable):
        return bind(bound, a.name, b)
    return bound if type(a) is type(b) and a == b else None


def bind(bound: Binding, name: str, value) -> Binding | None:
    """The binding with one more name; None if the name stands for something else."""
    if name in bound:
        return bound if bound[name] == value else None
    return {**bound, name: value}


def instantiate(pattern, binding: Binding):
    """The pattern with its variables replaced; works on terms, dims and attributes."""
    if isinstance(pattern, Dim):
        return binding[f"dim {pattern.name}"] if pattern.size is None else pattern
    if isinstance(pattern, AttributeVariable):
        return binding[pattern.name]
    if not isinstance(pattern, Term):
        return pattern

    def change(node: Term, args):
        if node.op == "var":
            return binding[node.attrs[0]]
        return build(node.op, args, tuple(instantiate(a, binding) for a in node.attrs))

    return rebuild(pattern, change)


def holds(guard: Guard, binding: Binding) -> bool:
    """Decides a guard on a binding; unknown is False."""
    return GUARDS[guard.kind].holds(*(instantiate(o, binding) for o in guard.operands))


def rewrite(rule: Rule, target: Term) -> Term | None:
    """The right side, if the left side matches at the root of the target and all guards hold."""
    binding = match(rule.left, target)
    if binding is None or not all(holds(g, binding) for g in rule.guards):
        return None
    return instantiate(rule.right, binding)

"""Matching and instantiation of plain patterns, and rewriting of one term by one rule.

A binding maps variable names to terms, "dim j" to dims, and attribute variables to plain values. The module is small on
purpose: normal forms, certificates and proofs depend on it. Example: `match(x + y, a + b)` binds x to a and y to b.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..terms.sizes import term_of
from ..terms.term import AttributeVariable, Dim, Term, TermError
from ..terms.traversal import all_dims, at_place, rebuild, reduces
from .guard import GUARDS, Guard
from .pattern import build
from .rule import Rule

Binding = dict[str, object]


def match(pattern: Term, target: Term, binding: Binding | None = None) -> Binding | None:
    """The binding that makes the pattern equal to the target and extends the given one; None if there is none.

    A variable at another place binds nothing: whoever matches such a side compares the target with its instance.
    """
    if pattern.op not in ("var", "at", target.op):
        return None
    return _extended(pattern, target, {} if binding is None else binding, set())


def _extended(pattern: Term, target: Term, bound: Binding, matched: set[tuple[Term, Term]]) -> Binding | None:
    """As `match`. matched: pairs that match under the binding: what terms share is looked at once, not once a path."""
    if pattern.op == "var":
        return bind(bound, pattern.attrs[0], target) if _admits(pattern, target) else None
    if pattern.op == "at" or (pattern.op == "size" and isinstance(pattern.attrs[0], Dim)):
        return bound
    if pattern.op != target.op or len(pattern.args) != len(target.args):
        return None
    if (pattern, target) in matched:
        return bound
    found: Binding | None = bound
    for a, b in zip(pattern.attrs, target.attrs, strict=True):
        found = match_attribute(a, b, found)
        if found is None:
            return None
    for a, b in zip(pattern.args, target.args, strict=True):
        found = _extended(a, b, found, matched)
        if found is None:
            return None
    matched.add((pattern, target))
    return found


def _admits(pattern: Term, target: Term) -> bool:
    return pattern.attrs[1] == "any" or pattern.attrs[1] == target.dtype


def match_attribute(a: object, b: object, bound: Binding) -> Binding | None:
    """The binding that makes the attribute a of a pattern equal to b; None if there is none."""
    if isinstance(a, Dim) and a.size is None:
        return bind(bound, f"dim {a.name}", b)
    if isinstance(a, AttributeVariable):
        return bind(bound, a.name, b)
    return bound if type(a) is type(b) and a == b else None


def bind(bound: Binding, name: str, value: object) -> Binding | None:
    """The binding with one more name; None if the name is bound to something else."""
    if name in bound:
        return bound if bound[name] == value else None
    return {**bound, name: value}


def instantiate(pattern: Any, binding: Mapping[str, object]) -> Any:
    """The pattern, a term, dim or attribute, with its variables replaced. Raises TermError for an ill-formed result."""
    if isinstance(pattern, Dim):
        return binding[f"dim {pattern.name}"] if pattern.size is None else pattern
    if isinstance(pattern, AttributeVariable):
        return binding[pattern.name]
    if not isinstance(pattern, Term):
        return pattern

    def change(node: Term, args):
        if node.op == "var":
            return binding[node.attrs[0]]
        attrs = tuple(instantiate(a, binding) for a in node.attrs)
        if node.op == "at":
            return at_place(args[0], attrs[0], args[1])
        if node.op == "size" and isinstance(attrs[0], Dim):
            return term_of(attrs[0].size)
        return build(node.op, args, attrs)

    return rebuild(pattern, change)


def holds(guard: Guard, binding: Binding) -> bool:
    """Whether the guard is known to hold for the binding."""
    return GUARDS[guard.kind].holds(*(instantiate(o, binding) for o in guard.operands))


def rewrite(rule: Rule, target: Term, chosen: Mapping[str, object] | None = None) -> Term | None:
    """The right side, if the left side matches the whole target and all guards hold; else None.

    chosen: what the right side alone has, by the names in bindings.
    """
    binding = binding_of(rule, target, chosen or {})
    return None if binding is None else instantiate(rule.right, binding)


def applied(rule: Rule, target: Term, chosen: Mapping[str, object] | None = None) -> Term:
    """As `rewrite`, for a rule that applies. Raises TermError where it does not."""
    made = rewrite(rule, target, chosen)
    if made is None:
        raise TermError(f"{rule.name} does not apply to {target} with {dict(chosen or {})}")
    return made


def binding_of(rule: Rule, target: Term, chosen: Mapping[str, object]) -> Binding | None:
    """The binding with which the left side is the target, what is new is new, and all guards hold; None without."""
    binding = match(rule.left, target)
    if binding is None or (rule.chosen and not _is_new(rule, target, chosen, binding)):
        return None
    binding |= {name: chosen[name] for name in rule.chosen}
    return binding if all(holds(g, binding) for g in rule.guards) else None


def _is_new(rule: Rule, target: Term, chosen: Mapping[str, Any], binding: Binding) -> bool:
    """Whether all is chosen that the right side alone has: indices, and dims that nothing binds or names around them.

    A new dim may have the name of one that the target binds, where no dim of the left side is free inside.
    """
    if not {*rule.chosen} <= chosen.keys():
        return False
    dims = [chosen[name] for name in rule.new_dims]
    indices = [chosen[name] for name in rule.chosen if name not in rule.new_dims]
    bound = {value for value in binding.values() if isinstance(value, Dim)}
    taken = {*target.dims, *bound, *(r.attrs[1] for r in reduces(target) if not bound.isdisjoint(r.dims))}
    taken.update(d for index in indices for d in all_dims(index))
    return len({*dims}) == len(dims) and taken.isdisjoint(dims) and all(i.dtype == "int64" for i in indices)

"""What a pattern means: when a binding proves that it matches a term. A definition, written to be obviously right.

A proof lists the alternatives taken, from left to right, and the variables used; a binding matches when a proof uses
exactly its variables. Only locals are searched for. Certificates are checked by it, and tests hold the matcher to it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product

from ..terms.term import Term
from ..terms.traversal import rebuild, subterms
from .guard import Guard
from .match import Binding, holds, instantiate
from .pattern import build, fits_operator, is_plain
from .rule import variables_of

Proof = tuple[tuple[int, ...], frozenset[str]]


def matched_by(pattern: Term, target: Term, binding: Binding) -> bool:
    """Whether the pattern is the target under this binding, no more and no less."""
    return any(used == binding.keys() for _, used in proofs(pattern, target, binding))


def all_matches(pattern: Term, target: Term) -> list[Binding]:
    """Every binding that matches, once for each proof, in the order of the alternatives taken. Slow by design."""
    names = sorted(free_variables(pattern))
    found = []
    for values in product([None, *values_in(target)], repeat=len(names)):
        binding = {name: value for name, value in zip(names, values) if value is not None}
        found += [(taken, binding) for taken, used in proofs(pattern, target, binding) if used == binding.keys()]
    return [binding for _, binding in sorted(found, key=lambda entry: entry[0])]


def proofs(pattern: Term, target: Term, binding: Mapping) -> list[Proof]:
    """Every proof that the pattern is the target under values of all its variables."""
    args = pattern.args
    match pattern.op:
        case "var":
            name, dtype = pattern.attrs
            right = binding.get(name) is target and dtype in ("any", target.dtype)
            return [((), frozenset({name}))] if right else []
        case "apply":
            name = pattern.attrs[0].name
            right = binding.get(name) == target.op and fits_operator(target)
            return _every(args, target.args, binding, {name}) if right else []
        case "either":
            return [((n, *taken), used) for n, a in enumerate(args) for taken, used in proofs(a, target, binding)]
        case "also":
            return _every(args, [target] * len(args), binding, set())
        case "given":
            return [p for p in proofs(args[0], target, binding) if all(holds(g, binding) for g in pattern.attrs)]
        case "exists":
            return [(t, used - set(pattern.attrs)) for t, used in _with_locals(pattern, target, binding)]
        case "recursive":
            return proofs(unfolded(pattern), target, binding) if pattern.attrs[1] else []
    names = set().union(*(variables_of(a) for a in pattern.attrs))
    right = pattern.op == target.op and names <= binding.keys()
    right = right and all(_equal(instantiate(a, binding), b) for a, b in zip(pattern.attrs, target.attrs))
    return _every(args, target.args, binding, names) if right else []


def _equal(a, b) -> bool:
    return type(a) is type(b) and a == b


def _every(patterns, targets, binding: Mapping, names: set[str]) -> list[Proof]:
    """Proofs that each pattern is its target: one of the first, then one of the second, and so on."""
    if len(patterns) != len(targets):
        return []
    pairs = list(zip(patterns, targets))
    if not all(proofs(p, t, binding) for p, t in pairs if is_plain(p)):  # saves time only: these are quick to refute
        return []
    combined = product(*(proofs(p, t, binding) for p, t in pairs))
    return [(sum((taken for taken, _ in c), ()), frozenset(names).union(*(used for _, used in c))) for c in combined]


def _with_locals(pattern: Term, target: Term, binding: Mapping) -> Iterator[Proof]:
    """Proofs of the body, under every choice of values for the locals it uses."""
    outer = {name: value for name, value in binding.items() if name not in pattern.attrs}
    for values in product([None, *values_in(target)], repeat=len(pattern.attrs)):
        local = {name: value for name, value in zip(pattern.attrs, values) if value is not None}
        for taken, used in proofs(pattern.args[0], target, {**outer, **local}):
            if used & set(pattern.attrs) == local.keys():
                yield taken, used


def unfolded(pattern: Term) -> Term:
    """The body of a recursive pattern with the pattern itself, poorer by one unit of fuel, where it mentions itself."""
    name, fuel = pattern.attrs
    (body,) = pattern.args
    poorer = build("recursive", (body,), (name, fuel - 1))

    def change(node: Term, args):
        return poorer if node.op == "again" and node.attrs[0] == name else build(node.op, args, node.attrs)

    return rebuild(body, change)


def values_in(target: Term) -> list:
    """Everything in a term that a variable could stand for: subterms, attributes, operations."""
    nodes = list(subterms(target))
    attributes = [a for node in nodes for a in node.attrs]
    return list(dict.fromkeys([*nodes, *attributes, *(node.op for node in nodes)]))


def free_variables(x) -> frozenset[str]:
    """Names that matching the pattern can bind: all but locals."""
    if isinstance(x, Guard):
        return frozenset().union(*map(free_variables, x.operands))
    if not isinstance(x, Term):
        return frozenset(variables_of(x))
    if x.op == "var":
        return frozenset({x.attrs[0]})
    inner = frozenset().union(*map(free_variables, (*x.args, *x.attrs)))
    return inner - set(x.attrs) if x.op == "exists" else inner

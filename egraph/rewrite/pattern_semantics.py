"""The meaning of patterns: a slow definition of matching, written to be obviously right.

A proof that a pattern is a term lists the alternatives taken, from left to right, and the variables used. A binding
matches if some proof uses exactly its variables. Only the values of locals are searched for. Certificates are checked
by this definition, and tests compare the matcher with it. Example: the proof that either(x, exp(x)) is exp(a), for
x = a, takes the alternative 1 and uses x.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product

from ..terms.term import Term
from ..terms.traversal import rebuild, subterms
from .guard import Guard
from .match import Binding, holds, instantiate
from .pattern import build, fits_operator, is_plain
from .rule import variables_of

Proof = tuple[tuple[int, ...], frozenset[str]]  # the alternatives taken, and the variables used


def matched_by(pattern: Term, target: Term, binding: Binding) -> bool:
    """Whether the pattern is the target under exactly this binding."""
    return any(used == binding.keys() for _, used in proofs(pattern, target, binding))


def all_matches(pattern: Term, target: Term) -> list[Binding]:
    """Every binding that matches, once for each proof, in the order of the alternatives taken. Slow."""
    names = sorted(free_variables(pattern))
    found = []
    for values in product([None, *values_in(target)], repeat=len(names)):
        binding = {name: value for name, value in zip(names, values) if value is not None}
        found += [(taken, binding) for taken, used in proofs(pattern, target, binding) if used == binding.keys()]
    return [binding for _, binding in sorted(found, key=lambda entry: entry[0])]


def proofs(pattern: Term, target: Term, binding: Binding) -> list[Proof]:
    """Every proof that the pattern is the target under values of all its variables."""
    return _PROOFS.get(pattern.op, _proofs_of_operation)(pattern, target, binding)


def _proofs_of_variable(pattern: Term, target: Term, binding: Binding) -> list[Proof]:
    name, dtype = pattern.attrs
    right = binding.get(name) is target and dtype in ("any", target.dtype)
    return [((), frozenset({name}))] if right else []


def _proofs_of_apply(pattern: Term, target: Term, binding: Binding) -> list[Proof]:
    name = pattern.attrs[0].name
    right = binding.get(name) == target.op and fits_operator(target)
    return _every(pattern.args, target.args, binding, {name}) if right else []


def _proofs_of_either(pattern: Term, target: Term, binding: Binding) -> list[Proof]:
    return [((n, *taken), used) for n, a in enumerate(pattern.args) for taken, used in proofs(a, target, binding)]


def _proofs_of_also(pattern: Term, target: Term, binding: Binding) -> list[Proof]:
    return _every(pattern.args, [target] * len(pattern.args), binding, set())


def _proofs_of_given(pattern: Term, target: Term, binding: Binding) -> list[Proof]:
    return [p for p in proofs(pattern.args[0], target, binding) if all(holds(g, binding) for g in pattern.attrs)]


def _proofs_of_exists(pattern: Term, target: Term, binding: Binding) -> list[Proof]:
    return [(taken, used - set(pattern.attrs)) for taken, used in _with_locals(pattern, target, binding)]


def _proofs_of_recursive(pattern: Term, target: Term, binding: Binding) -> list[Proof]:
    return proofs(unfolded(pattern), target, binding) if pattern.attrs[1] else []


def _proofs_of_operation(pattern: Term, target: Term, binding: Binding) -> list[Proof]:
    names = set().union(*(variables_of(a) for a in pattern.attrs))
    right = pattern.op == target.op and names <= binding.keys()
    right = right and all(_equal(instantiate(a, binding), b) for a, b in zip(pattern.attrs, target.attrs))
    return _every(pattern.args, target.args, binding, names) if right else []


_PROOFS: dict[str, Callable[[Term, Term, Binding], list[Proof]]] = {
    "var": _proofs_of_variable,
    "apply": _proofs_of_apply,
    "either": _proofs_of_either,
    "also": _proofs_of_also,
    "given": _proofs_of_given,
    "exists": _proofs_of_exists,
    "recursive": _proofs_of_recursive,
}


def _equal(a: object, b: object) -> bool:
    return type(a) is type(b) and a == b


def _every(patterns, targets, binding: Binding, names: set[str]) -> list[Proof]:
    """Proofs that each pattern is its target: every combination of one proof for each of them."""
    if len(patterns) != len(targets):
        return []
    pairs = list(zip(patterns, targets))
    if not all(proofs(p, t, binding) for p, t in pairs if is_plain(p)):  # only to save time
        return []
    combined = product(*(proofs(p, t, binding) for p, t in pairs))
    return [(sum((taken for taken, _ in c), ()), frozenset(names).union(*(used for _, used in c))) for c in combined]


def _with_locals(pattern: Term, target: Term, binding: Binding) -> Iterator[Proof]:
    """Proofs of the body of `exists`, for every choice of values for the locals that it uses."""
    outer = {name: value for name, value in binding.items() if name not in pattern.attrs}
    for values in product([None, *values_in(target)], repeat=len(pattern.attrs)):
        local = {name: value for name, value in zip(pattern.attrs, values) if value is not None}
        for taken, used in proofs(pattern.args[0], target, {**outer, **local}):
            if used & set(pattern.attrs) == local.keys():
                yield taken, used


def unfolded(pattern: Term) -> Term:
    """One unfolding of a recursive pattern: its body, with the pattern, with less fuel, where it mentions itself."""
    name, fuel = pattern.attrs
    (body,) = pattern.args
    again = build("recursive", (body,), (name, fuel - 1))

    def change(node: Term, args):
        return again if node.op == "again" and node.attrs[0] == name else build(node.op, args, node.attrs)

    return rebuild(body, change)


def values_in(target: Term) -> list:
    """The possible values of a variable in a term: its subterms, attributes and operations."""
    nodes = list(subterms(target))
    attributes = [a for node in nodes for a in node.attrs]
    return list(dict.fromkeys([*nodes, *attributes, *(node.op for node in nodes)]))


def free_variables(x: object) -> frozenset[str]:
    """The names that a match of the pattern, guard or attribute can bind: all but locals."""
    if isinstance(x, Guard):
        return frozenset().union(*map(free_variables, x.operands))
    if not isinstance(x, Term):
        return frozenset(variables_of(x))
    if x.op == "var":
        return frozenset({x.attrs[0]})
    inner = frozenset().union(*map(free_variables, (*x.args, *x.attrs)))
    return inner - set(x.attrs) if x.op == "exists" else inner

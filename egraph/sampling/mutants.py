"""Mutants of a rule: rules with one small change, such as a typing mistake makes. Most of them are wrong laws.

A test of rules is good if it refutes mutants. Every mutant is well-formed; ill-formed ones are left out. Public as
`onepass.testing.mutants`. Example: x + 0 = x has the mutants x - 0 = x, which holds, and x + 1 = x, which does not.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ..rewrite.rule import Rule, refuse_bad, variables_of
from ..terms.ops import const, make, var
from ..terms.term import Dim, Term, TermError
from ..terms.traversal import all_dims, subterms

NOT_COMMUTATIVE = ("sub", "div", "pow", "floordiv", "mod", "lt", "le", "scaled", "where")
NEIGHBOURS = {
    "add": "sub", "sub": "add", "mul": "add", "div": "mul", "and": "or", "or": "and", "lt": "le", "le": "lt",
    "maximum": "minimum", "minimum": "maximum", "floordiv": "mod", "mod": "floordiv", "exp": "neg",
    "stored": "neg",
}  # fmt: skip
OTHER_MONOID = {"sum": "max", "max": "min", "min": "max", "prod": "sum", "any": "all", "all": "any"}


def mutants(rule: Rule) -> Iterator[Rule]:
    """The well-formed rules that differ from the given one in one place. The name says what was changed.

    >>> import onepass
    >>> @onepass.rule
    ... def doubled(x):
    ...     "x + x = 2 · x"
    ...     return x + x, 2.0 * x
    >>> next(onepass.testing.mutants(doubled)).name
    'doubled with add for mul on the right'
    """
    seen = {(rule.left, rule.right, rule.guards)}
    for what, changed in _changes(rule):
        used = variables_of(changed.left) | variables_of(changed.right)
        kept = tuple((name, kind) for name, kind in rule.variables if kind != "name" or name in used)
        mutant = replace(changed, name=f"{rule.name} with {what}", variables=kept)
        key = mutant.left, mutant.right, mutant.guards
        try:
            refuse_bad(mutant)
        except TermError:
            continue
        if key not in seen:
            seen.add(key)
            yield mutant


def _changes(rule: Rule) -> Iterator[tuple[str, Rule]]:
    for number, guard in enumerate(rule.guards):
        yield f"no guard «{guard}»", replace(rule, guards=rule.guards[:number] + rule.guards[number + 1 :])
    for what, right in _changed_terms(rule.right):
        yield f"{what} on the right", replace(rule, right=right)
    for what, left in _changed_terms(rule.left):
        yield f"{what} on the left", replace(rule, left=left)


def _changed_terms(root: Term) -> Iterator[tuple[str, Term]]:
    """The terms with one occurrence of a subterm changed, each with a description."""
    for node, again in _places(root):
        for what, new in _changed_nodes(node, all_dims(root), _variables(root)):
            try:
                yield what, again(new())
            except TermError:
                continue


def _places(root: Term):
    """Every occurrence of a subterm, the root first, with a function that replaces that occurrence."""
    yield root, lambda new: new
    for number, argument in enumerate(root.args):
        for node, again in _places(argument):

            def put(new, number=number, again=again):
                args = (*root.args[:number], again(new), *root.args[number + 1 :])
                return make(root.op, args, root.attrs)

            yield node, put


def _variables(root: Term) -> list[Term]:
    return [n for n in subterms(root) if n.op == "var"]


def _changed_nodes(node: Term, dims: list[Dim], variables: list[Term]):
    """Changes of one node: descriptions, and functions that make the new node. These may raise TermError."""
    args = node.args
    if node.op == "var":
        name, dtype = node.attrs
        yield f"another variable for one {name}", lambda: var(f"{name}_other", dtype)
        for other in variables:
            if other is not node and other.attrs[1] == dtype:
                yield f"{other} for one {name}", lambda other=other: other
    if node.op in NOT_COMMUTATIVE:
        swapped = (*args[:-2], args[-1], args[-2])
        yield f"the operands of {node.op} swapped", lambda: make(node.op, swapped, node.attrs)
    if node.op == "reduce":
        yield from _changed_reductions(node, dims)
    if node.op == "const":
        yield f"another constant than {node}", lambda: const(_other(node.attrs[0]))
    if node.op in NEIGHBOURS:
        yield f"{NEIGHBOURS[node.op]} for {node.op}", lambda: make(NEIGHBOURS[node.op], args)
    if args and node.op not in ("load", "reduce"):
        yield f"no {node.op}", lambda: args[-1]


def _changed_reductions(node: Term, dims: list[Dim]):
    monoid, dim = node.attrs
    if monoid in OTHER_MONOID:
        yield f"{OTHER_MONOID[monoid]} for {monoid}", lambda: make("reduce", node.args, (OTHER_MONOID[monoid], dim))
    for other in dims:
        if other != dim:
            yield f"{other} for {dim}", lambda other=other: make("reduce", node.args, (monoid, other))
    yield f"no reduction over {dim}", lambda: node.args[0]


def _other(value):
    if isinstance(value, bool):
        return not value
    return value + 1 if value - value == 0 else type(value)(0)

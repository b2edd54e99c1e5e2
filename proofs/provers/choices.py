"""Splits a rule by the value of a predicate that does not vary along the dims that are reduced around it.

Such a predicate has one value at each place of the sides, so what holds where it is true, and where it is false, holds.
Example: Σ_j where(p, s, t) = where(p, Σ_j s, Σ_j t) is Σ_j s = Σ_j s, and Σ_j t = Σ_j t.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from ...egraph.rewrite.rule import Rule
from ...egraph.terms.ops import const, make
from ...egraph.terms.term import Dim, Term
from ...egraph.terms.traversal import rebuild, reduces, subterms


def by_value(rule: Rule) -> tuple[Rule, Rule] | None:
    """The rule where one of its predicates is true, and where it is false; None without such a predicate."""
    still = {g.operands for g in rule.guards if g.kind == "independent"}
    around: dict[Term, set[Dim]] = defaultdict(set)
    for one in (*reduces(rule.left), *reduces(rule.right)):
        for node in subterms(one.args[0]):
            around[node].add(one.attrs[1])
    for p, dims in around.items():
        if p.op == "var" and p.dtype == "bool" and all((p, dim) in still for dim in dims):
            return _with_value(rule, p, True), _with_value(rule, p, False)
    return None


def _with_value(rule: Rule, p: Term, value: bool) -> Rule:
    def change(node: Term, args):
        if node.op == "where" and args[0].op == "const":
            return args[1] if args[0].attrs[0] else args[2]
        return const(value) if node is p else make(node.op, args, node.attrs)

    guards = tuple(g for g in rule.guards if p not in g.operands)
    variables = tuple(v for v in rule.variables if v[0] != p.attrs[0])
    left, right = rebuild(rule.left, change), rebuild(rule.right, change)
    return replace(rule, left=left, right=right, guards=guards, variables=variables)

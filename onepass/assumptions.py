"""Which named assumptions a derivation relies on: those of its rules, where the step's own term can meet them.

A law that holds "where masked values are finite" needs no such thing of a term in which nothing is masked. Called for
reports and by `verify`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import inf

from .egraph.certificate import Derivation, Step
from .egraph.cost import contracts
from .egraph.rule import Rule
from .egraph.term import FLOATS, Term, reduces, subterms

THROUGH = ("neg", "mul", "div", "cast", "where", "add", "sub")  # what an infinite bias goes through


def exactness(derivation: Derivation, rules: Mapping[str, Rule]) -> dict[str, str]:
    """For each rule used, in order: "bitwise", "reassociates", or the assumption that some step of it needs."""
    found = {}
    for name in derivation.rules:
        rule, steps = rules[name], [step for step in derivation.steps if step.rule == name]
        needed = rule.assumption is None or _meets(rule.assumption, steps)
        found[name] = rule.exact if needed else "reassociates"
    return found


def assumptions(derivation: Derivation, rules: Mapping[str, Rule]) -> tuple[str, ...]:
    """The sentences, in order of first use."""
    needed = exactness(derivation, rules)
    return tuple(dict.fromkeys(exact for name, exact in needed.items() if rules[name].assumption == exact))


def _meets(assumption: str, steps: Iterable[Step]) -> bool:
    can_meet = WHERE.get(assumption)
    return can_meet is None or any(can_meet(step.old) for step in steps)


def _may_mask(root: Term) -> bool:
    """A choice, a literal -∞, or a tensor that is added to a score and may hold one; to a factor of scores, none is."""
    bound = {r.attrs[1] for r in reduces(root)}
    within = subterms(root, lambda node: node.op == "reduce" and contracts(node.args[0]) and node.dims & bound)
    return any(node.op == "where" or (node.op == "const" and node.attrs[0] == -inf) for node in subterms(root)) or any(
        node.op in ("add", "sub") and node.dtype in FLOATS and any(map(_is_read, node.args)) for node in within
    )


def _is_read(node: Term) -> bool:
    """The value is that of a tensor as it is, up to pointwise operations: no fold in between."""
    return any(inner.op == "load" for inner in subterms(node, lambda inner: inner.op not in THROUGH))


def _may_overflow(root: Term) -> bool:
    """Values of float16 are too small for that: their sums are of float32."""
    return any(node.op == "load" and node.dtype in FLOATS and node.dtype != "float16" for node in subterms(root))


WHERE = {  # an assumption that is not listed counts wherever its rule is used
    "masked values are finite": _may_mask,
    "nothing overflows before it is divided": _may_overflow,
}

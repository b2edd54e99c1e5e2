"""Why the premises of a derivative's certificate hold: each side, with what computes the named values in their place.

Proved laws bring both sides to one term. Between their chains stand facts that no law states: what a rescaled state is
by definition, and what holds of positive numbers, such as exp(log x) = x for a sum x of exponentials. They hold for
rows that keep an element, of finite scores. Example: exp(log[i]) = Σ_j exp(s), where the forward computes log as
m + log Σ_j exp(s - m).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf

from ..derivation.certificate import BACKWARD, CertificateError, Derivation
from ..derivation.derive import replay
from ..derivation.normalize import Normaliser
from ..rewrite.rule import Rule
from ..terms.ops import const, exp, make, max_over, sum_over, where
from ..terms.printing import show
from ..terms.term import Term
from ..terms.traversal import rebuild
from .derivative_certificate import check_chain, in_full
from .equations import Laws
from .saved import Saved

MAX_ROUNDS = 4  # of facts and laws that take divisors apart


@dataclass(frozen=True)
class PremiseProof:
    """Chains from both sides of an equation to one term; `by_facts` leads from each goal to the next start."""

    left: tuple[Derivation, ...]
    right: tuple[Derivation, ...]


def prove_premise(premise: Rule, named: Sequence[Saved], laws: Laws) -> PremiseProof | None:
    """A proof by the laws; None if they lead to two terms."""
    back = {rule.name: replace(rule, left=rule.right, right=rule.left) for rule in laws.turned}
    apart, together = (Normaliser((*laws.normal, *back.values(), *more)) for more in (laws.shift_free, laws.gather))
    sides = [_chains(in_full(side, named), apart, together, back) for side in (premise.left, premise.right)]
    goals = {_goal(in_full(side, named), chains) for side, chains in zip((premise.left, premise.right), sides)}
    return PremiseProof(*sides) if len(goals) == 1 else None


def _chains(side: Term, apart: Normaliser, together: Normaliser, turned: Collection[str]) -> tuple[Derivation, ...]:
    """Chains to a normal form, of a side that reads no named values. turned: names of laws that are read backwards."""
    found: list[Derivation] = []
    current = by_facts(side)
    for normaliser in (*[apart] * MAX_ROUNDS, together, together):
        normaliser.normal(current)
        chain = _turned_back(replay(current, normaliser), turned)
        after = by_facts(chain.goal)
        if after is not current:
            found.append(chain)
        current = after
    return tuple(found)


def _turned_back(chain: Derivation, turned: Collection[str]) -> Derivation:
    """The chain by the laws as they stand, of which these are read from right to left."""
    steps = (replace(step, direction=BACKWARD) if step.rule in turned else step for step in chain.steps)
    return replace(chain, steps=tuple(steps))


def _goal(side: Term, chains: Sequence[Derivation]) -> Term:
    return by_facts(chains[-1].goal if chains else side)


def check_premise(premise: Rule, proof: PremiseProof, named: Sequence[Saved], rules: Mapping[str, Rule]) -> None:
    """Raises CertificateError unless the chains lead from both sides of the premise to one term."""
    goals: list[Term] = []
    for name, side, chains in (("left", premise.left, proof.left), ("right", premise.right, proof.right)):
        current = by_facts(in_full(side, named))
        for number, chain in enumerate(chains, 1):
            where = f"chain {number} of the {name} side of {premise.name}"
            if chain.start is not current:
                raise CertificateError(0, f"{where} starts from {show(chain.start)}, not from {show(current)}")
            check_chain(where, chain, rules)
            current = by_facts(chain.goal)
        goals.append(current)
    if goals[0] is not goals[1]:
        raise CertificateError(0, f"the sides of {premise.name} are {show(goals[0])} and {show(goals[1])}")


# Facts ----------------------------------------------------------------------------------------------------------------


def by_facts(term: Term) -> Term:
    """An equal term, without states and without what cancels because it is positive."""
    return rebuild(term, lambda node, args: _by_fact(make(node.op, args, node.attrs)))


def _by_fact(node: Term) -> Term:
    """The node itself if no fact is about it."""
    fact = _FACTS.get(node.op)
    found = None if fact is None else fact(*node.args)
    return node if found is None else found


def _scale(state: Term) -> Term | None:
    """scale(⊕_j ⟨s, w⟩) = max_j s"""
    return max_over(state.attrs[1], state.args[0].args[0]) if _is_state(state) else None


def _mantissa(state: Term) -> Term | None:
    """mantissa(⊕_j ⟨s, w⟩) = Σ_j exp(s - max_j s) · w"""
    if not _is_state(state):
        return None
    dim, (s, w) = state.attrs[1], state.args[0].args
    share = exp(s - max_over(dim, s))
    return sum_over(dim, share if w is const(1.0) else share * w)


def _is_state(state: Term) -> bool:
    return state.op == "reduce" and state.attrs[0] == "rescaled" and state.args[0].op == "scaled"


def _exponential(x: Term) -> Term | None:
    """exp(log x) = x, and exp(a - log x) = exp(a) / x"""
    if x.op == "log" and is_positive(x.args[0]):
        return x.args[0]
    if x.op == "sub" and x.args[1].op == "log" and is_positive(x.args[1].args[0]):
        return exp(x.args[0]) / x.args[1].args[0]
    return None


def _equality(x: Term, y: Term) -> Term | None:
    """A row that keeps an element has a largest score, which is finite as all scores are: neither -∞ nor ∞."""
    is_largest = x.op == "reduce" and x.attrs[0] == "max"
    return const(False) if is_largest and y in (const(-inf), const(inf)) else None


def _product(x: Term, y: Term) -> Term | None:
    """(a / x) · x = a"""
    for quotient, other in ((x, y), (y, x)):
        if quotient.op == "div" and quotient.args[1] is other and is_positive(other):
            return quotient.args[0]
    return None


def _choice(p: Term, chosen: Term, other: Term) -> Term | None:
    """where(p, a / x, 0) = where(p, a, 0) / x"""
    if other is const(0.0) and chosen.op == "div" and is_positive(chosen.args[1]):
        return where(p, chosen.args[0], other) / chosen.args[1]
    return None


def _quotient(x: Term, divisor: Term) -> Term | None:
    return _divided(x, divisor) if is_positive(divisor) else None


def _divided(x: Term, divisor: Term) -> Term | None:
    """x without the factor; None if it is no factor of x: (a · c) / c = a, also of each addend, and inside of a sum."""
    if x is divisor:
        return const(1.0)
    if x.op in ("add", "sub"):
        parts = [_divided(a, divisor) for a in x.args]
        return None if None in parts else make(x.op, tuple(p for p in parts if p is not None))
    if x.op == "mul":
        left, right = x.args
        return _factor_divided(left, right, divisor) or _factor_divided(right, left, divisor)
    if x.op == "div" or (x.op == "reduce" and x.attrs[0] == "sum" and x.attrs[1] not in divisor.dims):
        part = _divided(x.args[0], divisor)
        return None if part is None else make(x.op, (part, *x.args[1:]), x.attrs)
    return None


def _factor_divided(factor: Term, other: Term, divisor: Term) -> Term | None:
    part = _divided(factor, divisor)
    return None if part is None else other if part is const(1.0) else part * other


_FACTS: dict[str, Callable[..., Term | None]] = {
    "scale": _scale,
    "mantissa": _mantissa,
    "exp": _exponential,
    "eq": _equality,
    "mul": _product,
    "where": _choice,
    "div": _quotient,
}


def is_positive(x: Term) -> bool:
    """Whether a term is positive as it is written: made of exponentials, of which a row keeps at least one."""
    match x.op:
        case "exp":
            return True
        case "const":
            return not isinstance(x.attrs[0], bool) and 0 < x.attrs[0] < inf
        case "reduce":
            body = x.args[0]
            masked = body.op == "where" and body.args[2] is const(0.0)
            return x.attrs[0] == "sum" and is_positive(body.args[1] if masked else body)
        case "add" | "mul" | "div" | "cast":
            return all(map(is_positive, x.args))
    return False

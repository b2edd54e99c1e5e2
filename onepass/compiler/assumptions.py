"""What a plan takes for granted about the values of a program, and whether the program could tell otherwise.

A program that distinguishes NaN (`isnan`, comparisons) is not given laws that treat an added -∞ as masking.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import inf

from ..egraph.derivation import ledger
from ..egraph.derivation.certificate import Derivation, DerivationStep
from ..egraph.rewrite.rule import Rule
from ..egraph.search.cost import contracts
from ..egraph.terms.term import FLOATS, Term
from ..egraph.terms.traversal import reduces, subterms
from ..rules import ADDED, NORMAL

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


def _meets(assumption: str, steps: Iterable[DerivationStep]) -> bool:
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


# Of a value, where a sum of a mask and a score is NaN: it is as ever, it is NaN too, or it is some other value. A truth
# value may also be known there.
FREE, NAN, OTHER = "free", "nan", "other"
_SETTLES = {"and": False, "or": True}


def simplifying(terms: Iterable[Term]) -> tuple[Rule, ...]:
    """The proved laws of the normal form that hold for what these results tell of NaN: all if they tell nothing."""
    laws = ledger.proved(NORMAL)
    return tuple(r for r in laws if r not in ADDED) if any(map(tells, terms)) else laws


def tells(result: Term) -> bool:
    """Whether the result is another number, not NaN, where some sum of a mask and what a tensor holds is NaN."""
    masks: dict[Term, bool] = {}
    reads: dict[Term, bool] = {}
    found: dict[Term, object] = {}
    for node in subterms(result):
        masks[node] = node.op == "const" and node.attrs[0] == -inf
        masks[node] |= node.op in THROUGH and any(masks[a] for a in node.args)
        reads[node] = (node.op == "load" and node.dtype in FLOATS) or any(reads[a] for a in node.args)
        pairs = (node.args, node.args[::-1]) if node.op == "add" else ()
        summed = any(masks[mask] and reads[score] for mask, score in pairs)
        found[node] = NAN if summed else _carried(node, [found[a] for a in node.args])
    return found[result] not in (FREE, NAN)


def _carried(node: Term, args: list) -> object:
    """What becomes of the operation's result."""
    if all(a == FREE for a in args):
        return FREE
    match node.op:
        case "finite" | "lt" | "le" | "eq":
            return False if NAN in args else OTHER
        case "not":
            return (not args[0]) if isinstance(args[0], bool) else OTHER
        case "and" | "or":
            settled = _SETTLES[node.op]
            return settled if settled in args else (not settled) if args == [not settled] * 2 else OTHER
        case "where":
            return _chosen(*args)
    return NAN if NAN in args else OTHER


def _chosen(condition, yes, no) -> object:
    if isinstance(condition, bool):
        taken = yes if condition else no
        return OTHER if taken == FREE else taken
    if condition == OTHER or OTHER in (yes, no):
        return NAN if yes == no == NAN else OTHER
    return NAN

"""What a plan assumes about the values of a program, and whether the program would notice that it does not hold.

An assumption is named only where its rule was used on values that could break it. Example: "masked values are finite"
is not named for a program without a mask.
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

THROUGH = ("neg", "mul", "div", "cast", "where", "add", "sub")  # operations that keep an infinite bias infinite


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
    """Whether values may be masked: by a choice, a literal -∞, or a tensor added to a score, which may hold -∞.

    A tensor that is added to an operand of the product of scores is no mask.
    """
    bound = {r.attrs[1] for r in reduces(root)}
    within = subterms(root, lambda node: node.op == "reduce" and contracts(node.args[0]) and bool(node.dims & bound))
    return any(node.op == "where" or _is_minus_infinity(node) for node in subterms(root)) or any(
        node.op in ("add", "sub") and node.dtype in FLOATS and any(map(_is_read, node.args)) for node in within
    )


def _is_read(node: Term) -> bool:
    """Whether the value is an element of a tensor, up to pointwise operations, with no reduction in between."""
    return any(inner.op == "load" for inner in subterms(node, lambda inner: inner.op not in THROUGH))


def _may_overflow(root: Term) -> bool:
    """Whether sums may overflow. Sums of float16 values do not: they are computed in float32."""
    return any(node.op == "load" and node.dtype in FLOATS and node.dtype != "float16" for node in subterms(root))


WHERE = {  # an assumption that is not listed counts wherever its rule is used
    "masked values are finite": _may_mask,
    "nothing overflows before it is divided": _may_overflow,
}

# NaN under a mask -----------------------------------------------------------------------------------------------------
# Some laws of the normal form take an added -∞ for masking: an element whose score has -∞ added is absent, and what is
# absent counts for nothing. Eager adds: NaN + -∞ is NaN, so a NaN of a masked score reaches the result. Most programs
# differ from eager then only in that their result is finite where eager's is NaN, which the assumption "scores are
# finite" covers. But a program that replaces or tests NaN (`isnan`, `nan_to_num`, a comparison) would give another
# number. For such a program these laws are not used: adding -∞ is an addition, not masking.

# What a value is where some sum of a mask and a score is NaN: the same as ever, NaN as well, or another value. A truth
# value may also be known there; then it is True or False.
SAME, NAN, OTHER = "same", "nan", "other"
_SETTLING_VALUES = {"and": False, "or": True}


def simplifying(terms: Iterable[Term]) -> tuple[Rule, ...]:
    """The proved laws of the normal form that may be used for these results: all, if no result is NaN-sensitive."""
    laws = ledger.proved(NORMAL)
    return tuple(r for r in laws if r not in ADDED) if any(map(is_nan_sensitive, terms)) else laws


def is_nan_sensitive(result: Term) -> bool:
    """Whether the result is another number, not NaN, where some sum of a mask and a value of a tensor is NaN.

    Example: `nan_to_num(softmax(scores + mask) @ v)` is, and `softmax(scores + mask) @ v` is not.
    """
    masks: dict[Term, bool] = {}
    reads: dict[Term, bool] = {}
    found: dict[Term, object] = {}
    for node in subterms(result):
        masks[node] = _is_minus_infinity(node) or (node.op in THROUGH and any(masks[a] for a in node.args))
        reads[node] = (node.op == "load" and node.dtype in FLOATS) or any(reads[a] for a in node.args)
        pairs = (node.args, node.args[::-1]) if node.op == "add" else ()
        is_masked_score = any(masks[mask] and reads[score] for mask, score in pairs)
        found[node] = NAN if is_masked_score else _value_where_nan(node, [found[a] for a in node.args])
    return found[result] not in (SAME, NAN)


def _is_minus_infinity(node: Term) -> bool:
    return node.op == "const" and node.attrs[0] == -inf


def _value_where_nan(node: Term, args: list) -> object:
    """The operation's value where some masked score is NaN. args: the values of its operands there."""
    if all(a == SAME for a in args):
        return SAME
    match node.op:
        case "finite" | "lt" | "le" | "eq":
            return False if NAN in args else OTHER
        case "not":
            return (not args[0]) if isinstance(args[0], bool) else OTHER
        case "and" | "or":
            return _connected(_SETTLING_VALUES[node.op], args)
        case "where":
            return _chosen(*args)
    return NAN if NAN in args else OTHER


def _connected(settling: bool, args: list) -> object:
    """A conjunction or disjunction, which one operand of the value `settling` settles."""
    if settling in args:
        return settling
    return (not settling) if args == [not settling] * 2 else OTHER


def _chosen(condition: object, yes: object, no: object) -> object:
    """A choice by a condition that is True, False, SAME, NAN or OTHER."""
    if isinstance(condition, bool):
        taken = yes if condition else no
        return OTHER if taken == SAME else taken
    if condition == OTHER or OTHER in (yes, no):
        return NAN if yes == no == NAN else OTHER
    return NAN

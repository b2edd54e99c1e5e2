"""Whether a program tells NaN from numbers where a mask is added: then no law may take an added -∞ for absence.

NaN + -∞ is NaN, and what is absent is nothing. Elsewhere that only leaves a result finite which eager makes NaN, as
"scores are finite" says; behind nan_to_num, isnan or a comparison it would be another number. Called by pipeline.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

from .assumptions import THROUGH
from .egraph import ledger
from .egraph.rule import Rule
from .egraph.term import FLOATS, Term, subterms
from .rules import ADDED, NORMAL

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

"""States in Rocq that the rows of egraph/calculus/partials.py are derivatives, over the reals.

Where an operation is defined and has the slope d along one operand, what the row gives for a cotangent g is g · d, or
is undefined. Where it has no slope, as the maximum of two equal numbers, nothing is said: there a row is a convention.
The statements are written from the rows; a number that a row has rounded stands there exactly, as log 2. Example:
"exp" is about a slope d of `fun x => real (exponential (Number x))`.
"""

from __future__ import annotations

from collections.abc import Iterator
from inspect import signature
from math import log

from ...egraph.calculus.partials import PARTIALS
from ...egraph.rewrite.rule import Rule
from ...egraph.terms.ops import const, make, var
from ...egraph.terms.term import Term
from ...egraph.terms.traversal import substitute
from ..provers.claims import FINITE
from .statements import LawStatement, NotStated, Writer

COTANGENT, SLOPE = var("g"), var("d")
EXACT = {const(log(2.0)): make("log", (const(2.0),))}  # numbers that a row has rounded, and what they are
TRUTHS = ("p",)  # parameters of rows that are truth values


def operations() -> list[str]:
    """The operations with a row that is written with variables, in order."""
    return [op for op, row in PARTIALS.items() if row.of is not None and len(signature(row.of).parameters) > 2]


def of_operation(op: str) -> Iterator[LawStatement]:
    """A statement for each operand along which the row has a derivative. Raises NotStated."""
    row = PARTIALS[op]
    if row.of is None or op == "cast":
        raise NotStated(f"the derivative of {op} depends on more than numbers")
    names = list(signature(row.of).parameters)[2:]
    operands = [var(name, "bool" if name in TRUTHS else "any") for name in names]
    node = make(op, tuple(operands))
    for operand, part in zip(operands, row.of(node, COTANGENT, *operands), strict=True):
        if part is not None:
            yield _statement(op, operand, node, substitute(part, EXACT))


def _statement(op: str, operand: Term, node: Term, part: Term) -> LawStatement:
    name = operand.attrs[0]
    claim = Rule(f"{op}_by_{name}", "", part, COTANGENT * SLOPE, ())
    writer = Writer(claim, FINITE, nonempty=False, also=(node,))
    value, at, slope = writer.term(node), writer.names[operand], writer.names[SLOPE]
    given = (f"derivable_pt_lim (fun {at} => real {value}) {at} {slope}", f"is_finite {value} = true")
    return LawStatement(claim.name, writer.proposition(claim.left, claim.right, given))

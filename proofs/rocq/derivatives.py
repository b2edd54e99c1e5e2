"""States in Rocq that the rows of egraph/calculus/partials.py are derivatives, over the reals.

Where an operation is defined and has the slope d along one operand, what the row gives for a cotangent g is g · d, or
is undefined. Where it has no slope, as the maximum of two equal numbers, nothing is said: there a row is a convention.
The statements are written from the rows; a number that a row has rounded stands there exactly, as log 2. A cast changes
nothing, as in laws. Example: "exp" is about a slope d of `fun x => real (exponential (Number x))`.
"""

from __future__ import annotations

from collections.abc import Iterator
from inspect import signature
from math import log, pi, sqrt

from ...egraph.calculus.partials import PARTIALS
from ...egraph.rewrite.rule import Rule
from ...egraph.terms.ops import const, make, var
from ...egraph.terms.term import Term
from ...egraph.terms.traversal import substitute
from ..provers.claims import FINITE
from .statements import LawStatement, NotStated, Writer

COTANGENT, SLOPE = var("g"), var("d")
BELL = var("c")
EXACT = {const(log(2.0)): make("log", (const(2.0),)), const(2.0 / sqrt(pi)): BELL}  # numbers that a row has rounded
KNOWN = {BELL: "{} = 2 / sqrt PI"}  # what they are, if no operation gives them
CASTS = "float16", "float32"  # a cast from and to; the statement is about any functions that change nothing
TRUTHS = ("p",)  # parameters of rows that are truth values


def operations() -> list[str]:
    """The operations with a row that is written with variables, in order."""
    return [op for op, row in PARTIALS.items() if row.of is not None and len(signature(row.of).parameters) > 2]


def of_operation(op: str, times: float = 1.0) -> Iterator[LawStatement]:
    """A statement for each operand along which the row has a derivative. Raises NotStated.

    times: how often the slope is said to be what the row gives. All but 1 is wrong.
    """
    row = PARTIALS[op]
    if row.of is None:
        raise NotStated(f"{op} has no derivative: {row.why}")
    names = list(signature(row.of).parameters)[2:]
    dtype, attributes = (CASTS[0], CASTS[1:]) if op == "cast" else ("any", ())
    operands = [var(name, "bool" if name in TRUTHS else dtype) for name in names]
    node = make(op, tuple(operands), attributes)
    for operand, part in zip(operands, row.of(node, COTANGENT, *operands), strict=True):
        if part is not None:
            whole = COTANGENT * SLOPE if times == 1.0 else COTANGENT * (SLOPE * times)
            yield _statement(node, operand, Rule(f"{op}_by_{operand.attrs[0]}", "", substitute(part, EXACT), whole, ()))


def _statement(node: Term, operand: Term, claim: Rule) -> LawStatement:
    writer = Writer(claim, FINITE, nonempty=False, also=(node,))
    value, at, slope = writer.term(node), writer.names[operand], writer.names[SLOPE]
    given = [words.format(writer.names[number]) for number, words in KNOWN.items() if number in writer.names]
    given += [f"derivable_pt_lim (fun {at} => real {value}) {at} {slope}", f"is_finite {value} = true"]
    return LawStatement(claim.name, writer.proposition(claim.left, claim.right, tuple(given)))

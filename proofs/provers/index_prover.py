"""Proves equations of integers by z3: floor division, remainder, and the masks that compare indices.

a // g is the q with a = q·g + r, where r is between 0 and g and has the sign of g. For g = 0 nothing is known of q and
r, so no law may bring a division by zero into a program. Loads of integers are uninterpreted functions.
A coordinate is not negative. z3 is optional; without it nothing is proved, and the reason says so. Examples:
(a · g + b) // g = a + b // g, for g ≠ 0; and a // 4 < b is a < 4 · b.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import ModuleType
from typing import Any

from ...egraph.rewrite.guard import Guard
from ...egraph.terms.term import Term
from ...egraph.terms.traversal import subterms
from .extended_reals import COMPARISONS

INTEGER_OPERATIONS = ("floordiv", "mod")
INTEGERS = ("int", "uint")  # how the dtypes of integers begin
TIMEOUT_MILLISECONDS = 3000


def is_about_indices(*sides: Term) -> bool:
    """Whether a side has a floor division, a remainder, or a comparison of integers."""
    nodes = [node for side in sides for node in subterms(side)]
    return any(n.op in INTEGER_OPERATIONS or (n.op in COMPARISONS and n.args[0].dtype == "int64") for n in nodes)


def equal(
    left: Term, right: Term, guards: Iterable[Guard], sizes_positive: bool, both: bool = True
) -> tuple[bool, str]:
    """Whether the sides are proved to be equal for all integers under the guards; and if not, why.

    The right side may divide by zero only where the left side does; both: and conversely.
    """
    try:
        import z3
    except ImportError:
        return False, "z3 is not installed: pip install 'onepass[solvers]'"
    reading = _Reading(z3)
    try:
        a, b = reading.term(left), reading.term(right)
        known = [reading.guard(guard, sizes_positive) for guard in guards]
        undefined = [reading.zero_divisors(right, left), *([reading.zero_divisors(left, right)] if both else [])]
    except _NotAnIndex as error:
        return False, str(error)
    solver = z3.Solver()
    solver.set("timeout", TIMEOUT_MILLISECONDS)
    facts = (*known, *reading.known, *reading.lemmas(), z3.Or(a != b, *undefined))
    solver.add(*(z3.simplify(x, som=True) for x in facts))
    answer = solver.check()
    if answer == z3.unsat:
        return True, ""
    return False, f"z3 answers {answer}" + (f": {solver.model()}" if answer == z3.sat else "")


class _NotAnIndex(Exception):
    """The term is outside integer arithmetic."""


class _Reading:
    """Translates terms to z3. `known` has the definitions of the quotients, and that coordinates are not negative."""

    def __init__(self, z3: ModuleType):
        self.z3 = z3
        self.done: dict[Term, Any] = {}
        self.known: list = []
        self.quotients: list[tuple] = []
        self.remainders: dict[int, Any] = {}  # by the place of their quotient

    def term(self, root: Term) -> Any:
        """The term as a z3 expression of an integer or a truth value. Raises _NotAnIndex."""
        for node in subterms(root):
            if node not in self.done:
                self.done[node] = self._node(node, [self.done[a] for a in node.args])
        return self.done[root]

    def _node(self, node: Term, args):
        z3 = self.z3
        match node.op:
            case "var" if node.dtype in ("int64", "bool"):
                return (z3.Int if node.dtype == "int64" else z3.Bool)(node.attrs[0])
            case "const" if type(node.attrs[0]) in (int, bool):
                return (z3.IntVal if node.dtype == "int64" else z3.BoolVal)(node.attrs[0])
            case "iota" | "size":
                count = z3.Int(f"{node.op} {node.attrs[0]}")
                self.known.append(count >= 0)
                return count
            case "load" if node.dtype.startswith(INTEGERS):
                function = z3.Function(f"load {node.attrs[0].name}", *[z3.IntSort()] * (len(args) + 1))
                return function(*args) if args else z3.Int(f"load {node.attrs[0].name}")
            case "add":
                return args[0] + args[1]
            case "sub":
                return args[0] - args[1]
            case "mul":
                return args[0] * args[1]
            case "neg":
                return -args[0]
            case "floordiv":
                return self._quotient(*args)
            case "mod":
                return self._remainder(*args)
            case "lt" | "le" | "eq" | "and" | "or" | "not" | "where":
                return self._truth(node.op, *args)
        raise _NotAnIndex(f"{node.op} of dtype {node.dtype} is no index arithmetic")

    def _truth(self, op: str, *args):
        """A comparison, a connective, or a choice by one."""
        z3 = self.z3
        match op:
            case "lt":
                return args[0] < args[1]
            case "le":
                return args[0] <= args[1]
            case "eq":
                return args[0] == args[1]
            case "where":
                return z3.If(*args)
        return {"and": z3.And, "or": z3.Or, "not": z3.Not}[op](*args)

    def _quotient(self, a, g):
        """A new variable for the floor of a / g. It is unconstrained for g = 0."""
        for b, h, q in self.quotients:
            if b.eq(a) and h.eq(g):
                return q
        z3 = self.z3
        q = z3.Int(f"quotient {len(self.quotients)}")
        rest = a - q * g
        self.known.append(z3.Implies(g > 0, z3.And(0 <= rest, rest < g)))
        self.known.append(z3.Implies(g < 0, z3.And(g < rest, rest <= 0)))
        self.quotients.append((a, g, q))
        return q

    def zero_divisors(self, side: Term, other: Term) -> Any:
        """Whether the side divides by zero, where no division of the other side has the same divisor."""
        own, others = ([self.done[n.args[1]] for n in subterms(x) if n.op in INTEGER_OPERATIONS] for x in (side, other))
        return self.z3.Or(*(g == 0 for g in own if not any(h.eq(g) for h in others)))

    def _remainder(self, a, g):
        """a - q · g for the quotient q, and a variable of its own for g = 0, where it would be a."""
        q, z3 = self._quotient(a, g), self.z3
        if z3.is_int_value(g) and g.as_long() != 0:
            return a - q * g
        place = next(n for n, (_, _, other) in enumerate(self.quotients) if other.eq(q))
        rest = self.remainders.setdefault(place, z3.Int(f"remainder {place}"))
        return z3.If(g == 0, rest, a - q * g)

    def lemmas(self) -> list:
        """Products of inequalities, valid for all integers, that help z3, such as x · g ≥ 0 for x ≥ 0 and g ≥ 0."""
        z3, found = self.z3, []
        plain = [v for t, v in self.done.items() if t.op in ("var", "const") and v.sort() == z3.IntSort()]
        pairs = [(one, other) for one in self.quotients for other in self.quotients if one is not other]
        for (_, g, q), (b, h, p) in pairs:
            for d in (q - p, p - q, *(sign * (q - p - v) for v in plain for sign in (1, -1))):
                found.append(z3.Implies(z3.And(d >= 1, g > 0), d * g >= g))
                found.append(z3.Implies(z3.And(d >= 1, g < 0), d * g <= g))
            rest = b - p * h
            products = (g * h > 0, rest * g >= 0, (h - 1 - rest) * g >= 0)
            found.append(z3.Implies(z3.And(g > 0, h > 0), z3.And(*products)))
        return [z3.simplify(lemma, som=True) for lemma in found]

    def guard(self, guard: Guard, sizes_positive: bool) -> Any:
        """A guard as a z3 expression; true for a guard that is not about integers."""
        match guard.kind:
            case "nonzero":
                divisor = self.term(guard.operands[0])
                return divisor > 0 if sizes_positive else divisor != 0
            case "positive":
                return self.term(guard.operands[0]) > 0
            case "in_range":
                index, size = map(self.term, guard.operands)
                return self.z3.And(0 <= index, index < size)
        return self.z3.BoolVal(True)

"""A rule is one frozen record: name, pattern variables, two sides, guards, exactness, source line.

`@rule` reads a small decorated function once, at definition, and refuses a bad one by name. Matcher, egglog, property
test, obligation and catalogue all consume this same record; nothing about a rule is stated twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..terms.term import AttributeVariable, Dim, Term, TermError
from ..terms.traversal import subterms
from .guard import Guard

EXACTNESS = ("bitwise", "reassociates")


@dataclass(frozen=True)
class Restriction:
    """What an assumption keeps out of values: -∞ (everywhere, or outside exponents), literals that are no sizes.

    defines_more: under it the right side may still be a number where the left is none, as in laws that reassociate.
    """

    scores_finite: bool = False
    values_finite: bool = False
    literals_positive: bool = False
    defines_more: bool = False


ASSUMPTIONS = {  # every one that a law may name; the last four are about floats, which proofs over the reals do not see
    "scores are finite": Restriction(scores_finite=True, values_finite=True),
    "masked values are finite": Restriction(values_finite=True),
    "sizes are positive": Restriction(literals_positive=True),
    "excess precision": Restriction(),
    "a zero has no sign": Restriction(),
    "nothing overflows before it is divided": Restriction(defines_more=True),
    "half inputs are finite and rounded": Restriction(scores_finite=True, values_finite=True),
}
LAMBDA = "<lambda>"
UNSAID = ("the docstring must state the law in one line", "a lambda has no docstring to state the law in: write a def")


class RuleError(TermError):
    """A rule that cannot be a law: unbound or unused variable, equal sides, ill-typed sides. Says which and where."""


@dataclass(frozen=True)
class Rule:
    """A law `left = right` for all values of its variables for which every guard holds.

    variables: name -> dims that the law claims it for, as the signature wrote them. exact: "bitwise", "reassociates",
    or an assumption of ASSUMPTIONS. both: also used from right to left.
    """

    name: str
    law: str
    left: Term
    right: Term
    variables: tuple[tuple[str, str], ...]
    guards: tuple[Guard, ...] = ()
    both: bool = False
    exact: str = "reassociates"
    source: str = ""
    trusted: bool = False

    def __str__(self) -> str:
        guards = f"   when {', '.join(map(str, self.guards))}" if self.guards else ""
        return f"{self.name}: {self.left} = {self.right}{guards}"

    def reversed(self) -> Rule:
        """The same law read from right to left."""
        from dataclasses import replace

        return replace(self, left=self.right, right=self.left)

    @property
    def assumption(self) -> str | None:
        """The named assumption under which the law holds, if it is more than reassociation."""
        return None if self.exact in EXACTNESS else self.exact

    @property
    def defined_alike(self) -> bool:
        """Whether both sides are numbers at the same places; else the right side may be one where the left is none."""
        return defined_alike(self.exact)

    @property
    def restriction(self) -> Restriction:
        """What that assumption keeps out of the variables' values."""
        return ASSUMPTIONS.get(self.exact, Restriction())


def defined_alike(exact: str) -> bool:
    """Whether the sides of a law of this exactness are numbers at the same places."""
    return exact != "reassociates" and not ASSUMPTIONS.get(exact, Restriction()).defines_more


def variables_of(x) -> set[str]:
    """Names of all variables in a pattern: terms, dims (as "dim j") and attributes alike."""
    if isinstance(x, Term):
        names = {node.attrs[0] for node in subterms(x) if node.op == "var"}
        return names.union(*(variables_of(a) for node in subterms(x) for a in node.attrs), set())
    if isinstance(x, Dim) and x.size is None:
        return {f"dim {x.name}"}
    return {x.name} if isinstance(x, AttributeVariable) else set()


def unknown_exactness(exact) -> Iterator[str]:
    """What is wrong with `exact`, if anything: an assumption that nothing knows would be met by nobody."""
    known = (*EXACTNESS, *ASSUMPTIONS)
    if exact not in known:
        yield f"exact is one of {', '.join(map(repr, known))}, not {exact!r}"


def refuse_bad(r: Rule) -> None:
    """Raises RuleError for a record that cannot be a law; `rule` and every reader of records call it."""

    def refuse(why: str):
        raise RuleError(f"rule {r.name} ({r.source}): {why}")

    left, right = variables_of(r.left), variables_of(r.right)
    declared = {v for v, _ in r.variables}
    for why in unknown_exactness(r.exact):
        refuse(why)
    if r.left is r.right:
        refuse("both sides are the same term")
    if not r.law:
        refuse(UNSAID[r.name == LAMBDA])
    for unused in sorted(declared - left - right):
        refuse(f"variable {unused!r} is declared and never used")
    for unbound in sorted(right - left):
        refuse(f"variable {unbound!r} of the right side is not bound by the left side")
    for unbound in sorted(left - right) if r.both else ():
        refuse(f"variable {unbound!r} of the left side is not bound by the right side (both=True)")
    for guard in r.guards:
        for unbound in sorted(set().union(*(variables_of(o) for o in guard.operands)) - left):
            refuse(f"guard «{guard}» mentions {unbound!r}, which the left side does not bind")
    if "any" not in (r.left.dtype, r.right.dtype) and not {r.left.dtype, r.right.dtype} & {"float"}:
        if r.left.dtype != r.right.dtype:
            refuse(f"the left side is {r.left.dtype}, the right side {r.right.dtype}")
    if r.left.op == "var":
        refuse("the left side is a bare variable: it would match everything")

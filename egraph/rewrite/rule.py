"""A rule is one frozen record: name, law, pattern variables, two sides, guards, exactness, source line.

Matcher, egglog, property tests, provers and the list of laws all read this record; nothing about a rule is stated
twice. `refuse_bad` rejects a record that cannot be a law. The decorator `@rule`, in define.py, makes records of
functions. Example: the record of x + x = 2 · x has the left side x + x and one variable, x.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..terms.term import AttributeVariable, Dim, Term, TermError
from ..terms.traversal import subterms
from .guard import Guard

EXACTNESS = ("bitwise", "reassociates")
NEW_DIM = "new dim"  # the annotation of a dim that the right side alone has: none of the term, nor another new one
NEW_INDEX = "new index"  # that of any integer term without the new dims, which the right side alone has


@dataclass(frozen=True)
class Restriction:
    """The values that an assumption excludes.

    scores_finite: variables under exponents are not -∞. values_finite: other variables are not -∞.
    literals_positive: integer literals are positive, as sizes are. defines_more: the right side may be a number where
    the left side is NaN, as for laws that reassociate.
    """

    scores_finite: bool = False
    values_finite: bool = False
    literals_positive: bool = False
    defines_more: bool = False


ASSUMPTIONS = {  # the last four are about floats; a proof over the reals does not depend on them
    "scores are finite": Restriction(scores_finite=True, values_finite=True),
    "masked values are finite": Restriction(values_finite=True),
    "sizes are positive": Restriction(literals_positive=True),
    "excess precision": Restriction(),
    "a zero has no sign": Restriction(),
    "nothing overflows before it is divided": Restriction(defines_more=True),
    "half inputs are finite and rounded": Restriction(scores_finite=True, values_finite=True),
}
LAMBDA = "<lambda>"
MISSING_LAW = (
    "the docstring must state the law in one line",
    "a lambda has no docstring to state the law in: write a def",
)


class RuleError(TermError):
    """A rule that cannot be a law: an unbound or unused variable, equal or ill-typed sides. The message says where."""


@dataclass(frozen=True)
class Rule:
    """A law `left = right`, for all values of its variables for which every guard holds.

    variables: name and annotation of each, as in the signature; an annotation names dims or a kind. exact: "bitwise",
    "reassociates", or an assumption of ASSUMPTIONS. both: the law is also used from right to left. trusted: the author
    vouches for it, so it is used without a proof.

    >>> import onepass
    >>> @onepass.rule
    ... def doubled(x):
    ...     "x + x = 2 · x"
    ...     return x + x, 2.0 * x
    >>> isinstance(doubled, onepass.Rule), doubled.name
    (True, 'doubled')
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
    def new_dims(self) -> tuple[str, ...]:
        """The names in bindings of the dims that the right side alone has."""
        return tuple(f"dim {name}" for name, kind in self.variables if kind == NEW_DIM)

    @property
    def chosen(self) -> tuple[str, ...]:
        """The names in bindings of what the right side alone has: whoever uses the law chooses it."""
        return (*self.new_dims, *(name for name, kind in self.variables if kind == NEW_INDEX))

    @property
    def assumption(self) -> str | None:
        """The named assumption under which the law holds; None for "bitwise" and "reassociates"."""
        return None if self.exact in EXACTNESS else self.exact

    @property
    def defined_alike(self) -> bool:
        """Whether both sides are NaN at the same places; else the right side may be a number where the left is NaN."""
        return defined_alike(self.exact)

    @property
    def restriction(self) -> Restriction:
        """The values that the assumption excludes."""
        return ASSUMPTIONS.get(self.exact, Restriction())


def defined_alike(exact: str) -> bool:
    """Whether the sides of a law of this exactness are NaN at the same places."""
    return exact != "reassociates" and not ASSUMPTIONS.get(exact, Restriction()).defines_more


def variables_of(x: object) -> set[str]:
    """The names of all variables in a pattern or an attribute. A dim variable j has the name "dim j"."""
    if isinstance(x, Term):
        names = {node.attrs[0] for node in subterms(x) if node.op == "var"}
        return names.union(*(variables_of(a) for node in subterms(x) for a in node.attrs), set())
    if isinstance(x, Dim) and x.size is None:
        return {f"dim {x.name}"}
    return {x.name} if isinstance(x, AttributeVariable) else set()


def unknown_exactness(exact: object) -> Iterator[str]:
    """What is wrong with `exact`, if anything."""
    known = (*EXACTNESS, *ASSUMPTIONS)
    if exact not in known:
        yield f"exact is one of {', '.join(map(repr, known))}, not {exact!r}"


def refuse_bad(r: Rule) -> None:
    """Raises RuleError for a record that cannot be a law. Whoever makes or reads a record calls it."""
    for why in (*unknown_exactness(r.exact), *_ill_formed(r), *_ill_bound(r), *_ill_sided(r)):
        raise RuleError(f"rule {r.name} ({r.source}): {why}")


def _ill_formed(r: Rule) -> Iterator[str]:
    if r.left is r.right:
        yield "both sides are the same term"
    if not r.law:
        yield MISSING_LAW[r.name == LAMBDA]


def _ill_bound(r: Rule) -> Iterator[str]:
    """Variables that are unused, or that the side that is matched does not bind."""
    new = {*r.chosen}
    left, right = variables_of(r.left) | new, variables_of(r.right)
    declared = {v for v, kind in r.variables if kind != NEW_DIM}
    for name in sorted(new.intersection(variables_of(r.left)) | (new - right)):
        yield f"{name} is annotated as new: the right side has it, and the left side does not"
    for dim in sorted(new & {f"dim {d.name}" for d in r.right.dims}):
        yield f"{dim} is a new dim, and no reduction of the right side binds it"
    for unused in sorted(declared - left - right):
        yield f"variable {unused!r} is declared and never used"
    for unbound in sorted(right - left):
        yield f"variable {unbound!r} of the right side is not bound by the left side"
    for unbound in sorted(left - right - new) if r.both else ():
        yield f"variable {unbound!r} of the left side is not bound by the right side (both=True)"
    for guard in r.guards:
        for unbound in sorted(set().union(*(variables_of(o) for o in guard.operands)) - left):
            yield f"guard «{guard}» mentions {unbound!r}, which the left side does not bind"


def _ill_sided(r: Rule) -> Iterator[str]:
    kinds = {r.left.dtype, r.right.dtype}
    if len(kinds) == 2 and not kinds & {"any", "float"}:  # these two adapt to the other side
        yield f"the left side is {r.left.dtype}, the right side {r.right.dtype}"
    if r.left.op == "var":
        yield "the left side is a bare variable: it would match everything"

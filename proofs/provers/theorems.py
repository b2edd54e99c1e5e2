"""The theorems of proofs/theory/ that the provers apply, and their hypotheses as equations between terms.

THEOREMS has the hypotheses of each theorem; a test compares it with Rocq. EQUATIONS states every hypothesis once, for
any monoid, homomorphism or cascade. Example: "op_comm" of the monoid sum is x + y = y + x.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ...egraph.terms.ops import MONOIDS, OPERATION_OF, const, exp, make, maximum, var
from ...egraph.terms.term import Term

THEOREMS: dict[str, tuple[str, ...]] = {
    "Monoid.split": ("op_assoc", "op_unit_left"),
    "Monoid.tile": ("op_assoc", "op_unit_left"),
    "Monoid.stream_reduce": ("op_assoc", "op_unit_left", "op_unit_right"),
    "Monoid.absent": ("op_unit_left",),
    "Monoid.pointwise": ("op_assoc", "op_unit_left", "op_comm"),
    "Monoid.fubini": ("op_assoc", "op_unit_left", "op_comm"),
    "Monoid.partition": ("op_assoc", "op_unit_left", "op_comm"),
    "Homomorphism.promote": ("phi_unit", "phi_op"),
    "Homomorphism.promote_nonempty": ("phi_op",),
    "Homomorphism.deferred": ("phi_unit", "phi_op"),
    "Homomorphism.fixed": ("fixed_unit", "fixed_op", "fixed_element"),
    "Tupling.tuple": (),
    "Cascade.combine_assoc": ("join_assoc", "op_assoc", "rescale_compose", "rescale_distributes"),
    "Cascade.combine_unit_left": (),
    "Cascade.combine_comm": ("join_comm", "op_comm"),
    "Cascade.cascade": ("rescale_distributes", "rescale_view"),
    "Cascade.cascade_stream": ("join_assoc", "op_assoc", "rescale_compose", "rescale_distributes", "rescale_view"),
    "Cascade.cascade_absent": ("join_assoc", "op_assoc", "rescale_compose", "rescale_distributes", "rescale_view"),
}


@dataclass(frozen=True)
class Structure:
    """An instance of a section of the theory: the values of its variables; None for variables that it lacks."""

    op: Callable[[Term, Term], Term]
    unit: Term | None = None
    phi: Callable[[Term], Term] | None = None
    target_op: Callable[[Term, Term], Term] | None = None
    target_unit: Term | None = None
    join: Callable[[Term, Term], Term] | None = None
    rescale: Callable[[Term, Term, Term], Term] | None = None
    view: Callable[[Term, Term, Term], Term] | None = None


ELEMENTS = x, y, z = tuple(var(f"element {name}") for name in "xyz")
TRUTHS = p, q, r = tuple(var(f"truth {name}", "bool") for name in "pqr")
GAUGES = k, m, n = tuple(var(f"gauge {name}") for name in "kmn")
SCORE, WEIGHT = var("one score"), var("one weight")

EQUATIONS: dict[str, Callable[..., tuple[Term, Term]]] = {
    "op_assoc": lambda s, x, y, z: (s.op(x, s.op(y, z)), s.op(s.op(x, y), z)),
    "op_unit_left": lambda s, x, y, z: (s.op(s.unit, x), x),
    "op_unit_right": lambda s, x, y, z: (s.op(x, s.unit), x),
    "op_comm": lambda s, x, y, z: (s.op(x, y), s.op(y, x)),
    "phi_unit": lambda s, x, y, z: (s.phi(s.unit), s.target_unit),
    "phi_op": lambda s, x, y, z: (s.phi(s.op(x, y)), s.target_op(s.phi(x), s.phi(y))),
    "fixed_unit": lambda s, x, y, z: (s.phi(s.unit), s.unit),
    "fixed_op": lambda s, x, y, z: (s.phi(s.op(s.phi(x), s.phi(y))), s.op(s.phi(x), s.phi(y))),
    "fixed_element": lambda s, x, y, z: (s.phi(z), z),  # z is what is folded
    "join_assoc": lambda s, x, y, z: (s.join(k, s.join(m, n)), s.join(s.join(k, m), n)),
    "join_comm": lambda s, x, y, z: (s.join(m, n), s.join(n, m)),
    "rescale_compose": lambda s, x, y, z: (s.rescale(n, k, s.rescale(m, n, x)), s.rescale(m, k, x)),
    "rescale_distributes": lambda s, x, y, z: (
        s.rescale(m, n, s.op(x, y)),
        s.op(s.rescale(m, n, x), s.rescale(m, n, y)),
    ),
    "rescale_view": lambda s, x, y, z: (s.rescale(m, n, s.view(m, SCORE, WEIGHT)), s.view(n, SCORE, WEIGHT)),
}
"""Name of a hypothesis in the theory: both of its sides, for a structure and three of its elements."""

RESCALED = Structure(
    op=lambda a, b: a + b,
    join=lambda a, b: maximum(a, b),
    rescale=lambda old, new, a: a * exp(old - new),
    view=lambda gauge, score, weight: weight * exp(score - gauge),
)
"""The monoid "rescaled" as an instance of the cascade. A test compares it with the fold of terms/ops.py."""


def monoid(name: str) -> Structure:
    """The structure of a monoid of egraph/terms/ops.py; it folds with an operation of terms."""
    operation = OPERATION_OF[name]
    identity: Any = MONOIDS[name].identity
    return Structure(lambda a, b: make(operation, (a, b)), const(identity))


def elements_of(name: str) -> tuple[Term, ...]:
    """Three variables of the type that the monoid folds."""
    return TRUTHS if MONOIDS[name].dtype == "bool" else ELEMENTS


def homomorphism(source: str, target: str, phi: Callable[[Term], Term]) -> Structure:
    """The structure of phi as a homomorphism from one monoid to another."""
    a, b = monoid(source), monoid(target)
    return Structure(a.op, a.unit, phi, b.op, b.unit)


def statement(hypothesis: str, structure: Structure, elements: Sequence[Term] = ELEMENTS) -> tuple[Term, Term]:
    """The hypothesis for a structure, as the two sides of an equation."""
    return EQUATIONS[hypothesis](structure, *elements)

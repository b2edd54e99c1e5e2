"""What a rule claims, case by case: its rules for each monoid, and what is known of its variables.

The provers and the statements in Rocq (proofs/rocq) both start from here. Example: a variable that is no score has the
kinds real and -∞; under the assumption "scores are finite" it is a real.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace

from ...egraph.rewrite.guard import CLASSES, Guard
from ...egraph.rewrite.rule import Restriction, Rule
from ...egraph.sampling.samples import variables_under_exponents
from ...egraph.terms.ops import MONOIDS, const, le, lt, make
from ...egraph.terms.term import AttributeVariable, Dim, Term
from ...egraph.terms.traversal import all_dims, rebuild, reduces, rename_dims, subterms
from . import dtypes
from .case_analysis import VariableFacts
from .extended_reals import ABSENT, NEG, PAIR_OF_REALS, POS, REAL, UNDEFINED

FINITE = Restriction(scores_finite=True, values_finite=True)
FINITE_BACKWARD = "from right to left: all values are finite"


def cases(rule: Rule) -> Iterator[Rule]:
    """The rule for every choice of monoids for its variables; and with each pair of dims made one dim."""
    for name, kind in rule.variables:
        if kind == "monoid":
            for monoid, guards in _monoids(rule, name):
                yield from cases(_with_monoid(replace(rule, guards=guards), name, monoid))
            return
    yield rule
    every = dict.fromkeys((*all_dims(rule.left), *all_dims(rule.right)))
    dims = [d for d in every if d.size is None and f"dim {d.name}" not in rule.new_dims]
    for n, dim in enumerate(dims):
        for other in dims[:n]:
            yield _with_one_dim(rule, {dim: other})


def _monoids(rule: Rule, name: str) -> Iterator[tuple[str, tuple[Guard, ...]]]:
    """The monoids that a variable stands for, by the guards about it, each with the other guards."""
    about = [g for g in rule.guards if g.kind in CLASSES and g.operands == (AttributeVariable(name),)]
    others = tuple(g for g in rule.guards if g not in about)
    yield from ((m, others) for m in MONOIDS if all(m in CLASSES[g.kind] for g in about))


def _with_monoid(rule: Rule, name: str, monoid: str) -> Rule:
    """The rule for one monoid. The variables are bools if it folds bools."""

    def change(node: Term, args):
        if node.op == "var" and node.attrs[1] == "any" and MONOIDS[monoid].dtype == "bool":
            return make("var", (), (node.attrs[0], "bool"))
        return make(node.op, args, tuple(monoid if a == AttributeVariable(name) else a for a in node.attrs))

    variables = tuple(v for v in rule.variables if v[0] != name)
    return replace(rule, variables=variables, left=rebuild(rule.left, change), right=rebuild(rule.right, change))


def _with_one_dim(rule: Rule, same: dict[Dim, Dim]) -> Rule:
    def renamed(operand):
        return same.get(operand, operand) if isinstance(operand, Dim) else operand

    guards = tuple(Guard(g.kind, tuple(map(renamed, g.operands))) for g in rule.guards)
    return replace(rule, left=rename_dims(rule.left, same), right=rename_dims(rule.right, same), guards=guards)


def facts_of(rule: Rule, restriction: Restriction) -> VariableFacts:
    """What the guards and the assumption of a rule say of its variables, for the provers."""
    guards: dict[str, list[Guard]] = defaultdict(list)
    for guard in rule.guards:
        guards[guard.kind].append(guard)
    signs = _known_signs(guards, restriction)
    in_range = [c for g in guards["in_range"] for c in (le(const(0), g.operands[0]), lt(*g.operands))]
    return VariableFacts(
        kinds=_kinds_of_variables(rule, restriction, signs, _names(guards["constant"])),
        signs=signs,
        real_casts=frozenset(g.operands[0] for g in guards["float_dtype"]),
        assumed=tuple(in_range),
        casts_round=rule.exact == "bitwise",
        own_casts=frozenset(g.operands for g in (*guards["has_dtype"], *guards["within"])),
        literals=frozenset(g.operands[0] for g in rule.guards if g.kind in dtypes.LITERAL),
    )


def constant_along_new_dims(rule: Rule) -> Iterator[tuple[Term, Dim]]:
    """Each variable of a rule with each new dim, on which it does not depend: the term that it stands for lacks it."""
    variables = dict.fromkeys(n for side in (rule.left, rule.right) for n in _variables(side))
    yield from ((x, Dim(name.removeprefix("dim "))) for x in variables for name in rule.new_dims)


def _names(guards: Iterable[Guard]) -> set[str]:
    """The names of the variables that the guards are about."""
    return {g.operands[0].attrs[0] for g in guards if g.operands[0].op == "var"}


def _known_signs(guards: Mapping[str, list[Guard]], restriction: Restriction) -> dict[str, int]:
    """Variables that are positive (1) or not zero (0)."""
    nonzero, positive = _names(guards["nonzero"]), _names(guards["positive"])
    if restriction.literals_positive:
        positive |= _names(guards["constant"]) | nonzero
    return dict.fromkeys(nonzero, 0) | dict.fromkeys(positive, 1)


def _kinds_of_variables(
    rule: Rule, restriction: Restriction, signs: Mapping[str, int], literals: set[str]
) -> Callable[[str], tuple[str, ...]]:
    """A function from the name of a variable to the kinds of value that it may have."""
    pattern = {n.attrs[0]: n for side in (rule.left, rule.right) for n in _variables(side)}
    scores = variables_under_exponents(rule.left)
    paired = any(r.attrs[0] == "rescaled" for r in reduces(rule.left)) and not _scaled(rule.left)

    def kinds(name: str) -> tuple[str, ...]:
        if name in signs or (name in pattern and pattern[name].dtype == "int64"):
            return (REAL,)
        if paired:
            return (PAIR_OF_REALS, ABSENT)
        if name in literals:
            return (REAL, NEG, POS, UNDEFINED)
        finite = restriction.scores_finite if name in scores else restriction.values_finite
        return (REAL,) if finite else (REAL, NEG)

    return kinds


def _variables(side: Term) -> list[Term]:
    return [n for n in subterms(side) if n.op == "var"]


def _scaled(side: Term) -> bool:
    return any(n.op == "scaled" for n in subterms(side))

"""`check(rule)`: the verdict on one rule, by the layers in order; each decides or leaves the question to the next.

Invariant: only a proof says proved, only a counterexample says refuted, and everything else is unknown with its reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from time import perf_counter

from ..egraph.rewrite.guard import Guard
from ..egraph.rewrite.rule import Restriction, Rule, RuleError, refuse_bad
from ..egraph.sampling.compare_sides import BITWISE_IN
from ..egraph.sampling.samples import variables_under_exponents
from ..egraph.terms.ops import MONOIDS, const, le, lt, make
from ..egraph.terms.term import AttributeVariable, Dim, Term, TermError
from ..egraph.terms.traversal import all_dims, rebuild, reduces, rename_dims, subterms
from .provers import dtypes, index_prover
from .provers.case_analysis import VariableFacts, compare
from .provers.extended_reals import ABSENT, NEG, PAIR_OF_REALS, POS, REAL
from .provers.reduction_prover import NOT_EMPTY, Proof, Reductions
from .refute import search
from .verdict import Verdict

BUDGET = 2.0
MOST_NODES, DEEPEST, MOST_DIMS, MOST_VARIABLES = 300, 60, 8, 9  # of a rule that is decided
QUICK_DRAWS = 60  # before a proof
BITWISE_DRAWS = 240  # for rules that claim equal bits: they are tested, as proofs are over the reals
TESTED_BITS = f"equal bits: tested in {', '.join(BITWISE_IN)}, not proved"
NONEMPTY_THEOREMS = ("Homomorphism.promote_nonempty", "Cascade.cascade_absent")
FINITE = Restriction(scores_finite=True, values_finite=True)
FINITE_BACKWARD = "from right to left: all values are finite"


def check(rule: Rule, budget: float = BUDGET) -> Verdict:
    """The verdict on a rule; proving and refuting take about `budget` seconds each. A wrong rule raises nothing."""
    start = perf_counter()

    def verdict(status, method, reason="", found=None, under=()) -> Verdict:
        named = (rule.assumption,) if rule.assumption else ()
        return Verdict(rule.name, status, method, perf_counter() - start, found, reason, (*named, *under))

    try:
        refuse_bad(rule)
    except RuleError as error:
        return verdict("refuted", "well-formedness", str(error))
    try:
        return _decided(rule, budget, verdict)
    except Exception as error:  # of a prover: whoever asks gets an answer, and this one proves nothing
        return verdict("unknown", "none", f"a prover failed: {type(error).__name__}: {error}")


def _decided(rule: Rule, budget: float, verdict: Callable[..., Verdict]) -> Verdict:
    if why := _too_large(rule):
        return verdict("unknown", "none", why)
    draws = BITWISE_DRAWS if rule.exact == "bitwise" else QUICK_DRAWS
    found, met = search(rule, budget, draws)  # most wrong rules fall at once
    if found:
        return verdict("refuted", "random float64 values", found=found)
    proved = prove(rule, perf_counter() + budget)
    if proved.holds:
        bits = (TESTED_BITS,) if rule.exact == "bitwise" else ()
        return verdict("proved", proved.method, under=(*proved.assumptions, *bits))
    found, met = search(rule, budget)
    if found:
        return verdict("refuted", "random float64 values", found=found)
    if index_prover.is_about_indices(rule.left, rule.right):  # dear, so only where numbers found nothing
        proved = prove(rule, perf_counter() + budget, solver=True)
        if proved.holds:
            return verdict("proved", proved.method, under=proved.assumptions)
    return verdict("unknown", "none", f"{proved.why}; {met} random instances agree")


def _too_large(rule: Rule) -> str:
    """Why a rule is too large for provers that recurse and go through cases; nothing if it is not."""
    for side in (rule.left, rule.right):
        nodes, depth = 0, {}
        for node in subterms(side):
            nodes, depth[node] = nodes + 1, 1 + max((depth[a] for a in node.args), default=0)
        if nodes > MOST_NODES or depth[side] > DEEPEST:
            return f"too large: {nodes} nodes, {depth[side]} deep, where provers take {MOST_NODES} and {DEEPEST}"
    dims = len({*all_dims(rule.left), *all_dims(rule.right)})
    if dims > MOST_DIMS or len(rule.variables) > MOST_VARIABLES:
        return f"too large: {dims} dims and {len(rule.variables)} variables, over {MOST_DIMS} or {MOST_VARIABLES}"
    return ""


@dataclass(frozen=True)
class Attempt:
    """What the proving layers say: whether the law holds, how that was seen, what it assumes beyond the rule's word."""

    holds: bool
    method: str = ""
    assumptions: tuple[str, ...] = ()
    why: str = ""


def prove(rule: Rule, deadline: float, solver: bool = False) -> Attempt:
    """A proof for every case of the rule's monoids and dims, in every direction that the rule is used in."""
    methods: dict[str, None] = {}
    assumptions: dict[str, None] = {}
    try:
        for case in cases(rule):
            if ill_typed := dtypes.complaint(case, deadline):
                return Attempt(False, why=ill_typed)
            needs_both = case.defined_alike
            found = sides_agree(case, rule.restriction, needs_both, deadline, solver)
            if not found.forward or (needs_both and not found.backward):
                return Attempt(False, why=found.why or "the sides agree in one direction only")
            parts = [found]
            if case.both and not found.backward:
                parts.append(sides_agree(case, FINITE, True, deadline, solver))
                if not parts[-1].backward:
                    return Attempt(False, why=f"from right to left: {parts[-1].why}")
                assumptions[FINITE_BACKWARD] = None
            for part in parts:
                methods |= dict.fromkeys(part.theorems)
                assumptions |= {NOT_EMPTY: None} if part.not_empty else {}
    except TermError as error:
        return Attempt(False, why=f"a case of the rule means nothing: {error}")
    if any(name in methods for name in NONEMPTY_THEOREMS):
        assumptions[NOT_EMPTY] = None
    return Attempt(True, ", ".join(methods), tuple(assumptions))


def cases(rule: Rule) -> Iterator[Rule]:
    """The rule for every monoid that its variables may stand for, and with dims that may be one and the same."""
    for name, kind in rule.variables:
        if kind == "monoid":
            for monoid in MONOIDS:
                yield from cases(_with_monoid(rule, name, monoid))
            return
    yield rule
    dims = [d for d in dict.fromkeys((*all_dims(rule.left), *all_dims(rule.right))) if d.size is None]
    for n, dim in enumerate(dims):
        for other in dims[:n]:
            yield _with_one_dim(rule, {dim: other})


def _with_monoid(rule: Rule, name: str, monoid: str) -> Rule:
    """The rule for one monoid; what it folds is then a number, a bool or a pair."""

    def change(node: Term, args):
        if node.op == "var" and MONOIDS[monoid].dtype == "bool":
            return make("var", (), (node.attrs[0], "bool"))
        return make(node.op, args, tuple(monoid if a == AttributeVariable(name) else a for a in node.attrs))

    sides = {side: rebuild(getattr(rule, side), change) for side in ("left", "right")}
    return replace(rule, variables=tuple(v for v in rule.variables if v[0] != name), **sides)


def _with_one_dim(rule: Rule, same: dict[Dim, Dim]) -> Rule:
    def renamed(operand):
        return same.get(operand, operand) if isinstance(operand, Dim) else operand

    guards = tuple(Guard(g.kind, tuple(map(renamed, g.operands))) for g in rule.guards)
    return replace(rule, left=rename_dims(rule.left, same), right=rename_dims(rule.right, same), guards=guards)


def sides_agree(rule: Rule, restriction: Restriction, both: bool, deadline: float, solver: bool) -> Proof:
    """The strongest that is shown of the two sides, for the values that the restriction leaves."""
    if rule.left is rule.right:
        return Proof(True, True, (), 1)
    facts = facts_of(rule, restriction)
    if reduces(rule.left) or reduces(rule.right):
        still = frozenset(g.operands for g in rule.guards if g.kind == "independent")
        return Reductions(facts, still, facts.literals, deadline).prove(rule.left, rule.right, both)
    found = compare(rule.left, rule.right, facts, deadline)
    if solver and not found.forward:
        equal, why = index_prover.equal(rule.left, rule.right, rule.guards, restriction.literals_positive)
        return Proof(equal, equal, ("integer arithmetic by z3",), 1, why)
    return Proof(found.forward, found.backward, ("cells",), found.cases, found.why)


def facts_of(rule: Rule, restriction: Restriction) -> VariableFacts:
    """What guards and assumption say of the rule's variables, for the provers."""
    about: dict[str, list[Guard]] = {}
    for guard in rule.guards:
        about.setdefault(guard.kind, []).append(guard)

    def named(kind: str) -> set[str]:
        return {g.operands[0].attrs[0] for g in about.get(kind, ()) if g.operands[0].op == "var"}

    signs = {name: 0 for name in named("nonzero")} | {name: 1 for name in named("positive")}
    pattern = {n.attrs[0]: n for side in (rule.left, rule.right) for n in _variables(side)}
    if restriction.literals_positive:
        signs |= {name: 1 for name in named("constant") | named("nonzero")}
    scores, literals = variables_under_exponents(rule.left), named("constant")
    paired = any(r.attrs[0] == "rescaled" for r in reduces(rule.left)) and not _scaled(rule.left)

    def kinds(name: str) -> tuple[str, ...]:
        if paired:
            return (PAIR_OF_REALS, ABSENT)
        if name in signs or (name in pattern and pattern[name].dtype == "int64"):
            return (REAL,)
        if name in literals:
            return (REAL, NEG, POS)
        finite = restriction.scores_finite if name in scores else restriction.values_finite
        return (REAL,) if finite else (REAL, NEG)

    ranges = [c for g in about.get("in_range", ()) for c in (le(const(0), g.operands[0]), lt(*g.operands))]
    real_casts = frozenset(g.operands[0] for g in about.get("float_dtype", ()))
    own_casts = frozenset(g.operands for g in (*about.get("has_dtype", ()), *about.get("within", ())))
    literal = frozenset(g.operands[0] for g in rule.guards if g.kind in dtypes.LITERAL)
    return VariableFacts(kinds, signs, real_casts, tuple(ranges), rule.exact == "bitwise", own_casts, literal)


def _variables(side: Term) -> list[Term]:
    return [n for n in subterms(side) if n.op == "var"]


def _scaled(side: Term) -> bool:
    return any(n.op == "scaled" for n in subterms(side))

"""`check(rule)`: the verdict on one rule. Each prover decides, or leaves the question to the next one.

Only a proof gives "proved", and only a counterexample gives "refuted". Everything else is "unknown", with the reason.
Example: Σ_j (s + c) = Σ_j s + c is refuted by a dim j of size 2 and c = 1.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from time import perf_counter, thread_time

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
from .solver_witness import counterexample_of_solver
from .verdict import Verdict

BUDGET_SECONDS = 2.0
MAX_NODES, MAX_DEPTH, MAX_DIMS, MAX_VARIABLES = 300, 60, 8, 9  # of a rule that is decided
QUICK_DRAWS = 60  # random instances before a proof
BITWISE_DRAWS = 240  # for rules that claim equal bits: these are tested, because proofs are over the reals
TESTED_BITS = f"equal bits: tested in {', '.join(BITWISE_IN)}, not proved"
NONEMPTY_THEOREMS = ("Homomorphism.promote_nonempty", "Cascade.cascade_absent")
FINITE = Restriction(scores_finite=True, values_finite=True)
FINITE_BACKWARD = "from right to left: all values are finite"


def check(rule: Rule, budget: float = BUDGET_SECONDS) -> Verdict:
    """The verdict on a rule. Proving and refuting take about `budget` seconds each. It raises nothing.

    Seconds are those of this thread's processor, so that a verdict does not depend on what else a machine does.
    """
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
    except Exception as error:  # a prover that fails proves nothing
        return verdict("unknown", "none", f"a prover failed: {type(error).__name__}: {error}")


def _decided(rule: Rule, budget: float, verdict: Callable[..., Verdict]) -> Verdict:
    if why := _too_large(rule):
        return verdict("unknown", "none", why)
    draws = BITWISE_DRAWS if rule.exact == "bitwise" else QUICK_DRAWS
    found, met = search(rule, budget, draws)  # refutes most wrong rules at once
    if found:
        return verdict("refuted", "random float64 values", found=found)
    proved = prove(rule, thread_time() + budget)
    if proved.holds:
        bits = (TESTED_BITS,) if rule.exact == "bitwise" else ()
        return verdict("proved", proved.method, under=(*proved.assumptions, *bits))
    found, met = search(rule, budget)
    if found:
        return verdict("refuted", "random float64 values", found=found)
    if index_prover.is_about_indices(rule.left, rule.right):  # slow, so only if no counterexample was found
        proved = prove(rule, thread_time() + budget, solver=True)
        if proved.holds:
            return verdict("proved", proved.method, under=proved.assumptions)
    if found := counterexample_of_solver(rule):
        return verdict("refuted", "a model of z3, evaluated in float64", found=found)
    return verdict("unknown", "none", f"{proved.why}; {met} random instances agree")


def _too_large(rule: Rule) -> str:
    """Why a rule is too large for provers, which recurse and enumerate cases; "" if it is not."""
    for side in (rule.left, rule.right):
        nodes = 0
        depth: dict[Term, int] = {}
        for node in subterms(side):
            nodes, depth[node] = nodes + 1, 1 + max((depth[a] for a in node.args), default=0)
        if nodes > MAX_NODES or depth[side] > MAX_DEPTH:
            return f"too large: {nodes} nodes, {depth[side]} deep, where provers take {MAX_NODES} and {MAX_DEPTH}"
    dims = len({*all_dims(rule.left), *all_dims(rule.right)})
    if dims > MAX_DIMS or len(rule.variables) > MAX_VARIABLES:
        return f"too large: {dims} dims and {len(rule.variables)} variables, over {MAX_DIMS} or {MAX_VARIABLES}"
    return ""


@dataclass(frozen=True)
class Attempt:
    """The result of the provers: whether the law is proved, by which method, under which further assumptions."""

    holds: bool
    method: str = ""
    assumptions: tuple[str, ...] = ()
    why: str = ""


def prove(rule: Rule, deadline: float, solver: bool = False) -> Attempt:
    """Proves the rule for every choice of its monoids and dims, in every direction in which the rule is used."""
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
    """The rule for every choice of monoids for its variables; and with each pair of dims made one dim."""
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
    """The rule for one monoid. The variables are bools if it folds bools."""

    def change(node: Term, args):
        if node.op == "var" and MONOIDS[monoid].dtype == "bool":
            return make("var", (), (node.attrs[0], "bool"))
        return make(node.op, args, tuple(monoid if a == AttributeVariable(name) else a for a in node.attrs))

    variables = tuple(v for v in rule.variables if v[0] != name)
    return replace(rule, variables=variables, left=rebuild(rule.left, change), right=rebuild(rule.right, change))


def _with_one_dim(rule: Rule, same: dict[Dim, Dim]) -> Rule:
    def renamed(operand):
        return same.get(operand, operand) if isinstance(operand, Dim) else operand

    guards = tuple(Guard(g.kind, tuple(map(renamed, g.operands))) for g in rule.guards)
    return replace(rule, left=rename_dims(rule.left, same), right=rename_dims(rule.right, same), guards=guards)


def sides_agree(rule: Rule, restriction: Restriction, both: bool, deadline: float, solver: bool) -> Proof:
    """The strongest statement about the two sides that is proved, for values within the restriction."""
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
        if paired:
            return (PAIR_OF_REALS, ABSENT)
        if name in signs or (name in pattern and pattern[name].dtype == "int64"):
            return (REAL,)
        if name in literals:
            return (REAL, NEG, POS)
        finite = restriction.scores_finite if name in scores else restriction.values_finite
        return (REAL,) if finite else (REAL, NEG)

    return kinds


def _variables(side: Term) -> list[Term]:
    return [n for n in subterms(side) if n.op == "var"]


def _scaled(side: Term) -> bool:
    return any(n.op == "scaled" for n in subterms(side))

"""`check(rule)`: the verdict on one rule. Each prover decides, or leaves the question to the next one.

Only a proof gives "proved", and only a counterexample gives "refuted". Everything else is "unknown", with the reason.
Example: Σ_j (s + c) = Σ_j s + c is refuted by a dim j of size 2 and c = 1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter, thread_time

from ..egraph.rewrite.rule import Restriction, Rule, RuleError, refuse_bad
from ..egraph.sampling.compare_sides import bitwise_in
from ..egraph.sampling.samples import SIZES_OF
from ..egraph.terms.term import Term, TermError
from ..egraph.terms.traversal import all_dims, reduces, subterms
from .provers import dtypes, index_prover
from .provers.case_analysis import compare
from .provers.choices import by_value
from .provers.claims import FINITE, FINITE_BACKWARD, cases, constant_along_new_dims, facts_of
from .provers.reduction_prover import NOT_EMPTY, Proof, Reductions
from .refute import search
from .solver_witness import counterexample_of_solver
from .verdict import Verdict

BUDGET_SECONDS = 2.0
MAX_NODES, MAX_DEPTH, MAX_DIMS, MAX_VARIABLES = 300, 60, 8, 9  # of a rule that is decided
QUICK_DRAWS = 60  # random instances before a proof
BITWISE_DRAWS = 240  # for rules that claim equal bits: these are tested, because proofs are over the reals
TESTED_BITS = "equal bits: tested in {}, not proved"
NONEMPTY_THEOREMS = ("Homomorphism.promote_nonempty", "Cascade.cascade_absent")


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
        bits = (TESTED_BITS.format(", ".join(bitwise_in(rule))),) if rule.exact == "bitwise" else ()
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
            found, why = _from_left_to_right(case, rule.restriction, deadline, solver)
            if why:
                return Attempt(False, why=why)
            parts = [found]
            if case.both and not found.backward:
                parts.append(sides_agree(case, FINITE, True, deadline, solver))
                if not parts[-1].backward:
                    return Attempt(False, why=f"from right to left: {parts[-1].why}")
                assumptions[FINITE_BACKWARD] = None
            if ill_typed := dtypes.complaint(case, deadline):
                return Attempt(False, why=dtypes.only_dtypes_are_left(case, ill_typed))
            for part in parts:
                methods |= dict.fromkeys(part.theorems)
                assumptions |= {NOT_EMPTY: None} if part.not_empty else {}
    except TermError as error:
        return Attempt(False, why=f"a case of the rule means nothing: {error}")
    if any(name in methods for name in NONEMPTY_THEOREMS):
        assumptions[NOT_EMPTY] = None
    return Attempt(True, ", ".join(methods), tuple(assumptions))


def _from_left_to_right(case: Rule, restriction: Restriction, deadline: float, solver: bool) -> tuple[Proof, str]:
    """What is proved of floating values, and why that is not enough to use the rule from left to right."""
    if ill_typed := dtypes.complaint(case, deadline, dtypes.FLOATING):
        return Proof(False, False, (), 0), ill_typed
    found = sides_agree(case, restriction, case.defined_alike, deadline, solver)
    if found.forward and (found.backward or not case.defined_alike):
        return found, ""
    return found, found.why or "the sides agree in one direction only"


def _joined(parts: Sequence[Rule], restriction: Restriction, both: bool, deadline: float) -> Proof:
    """The proof of a rule by the values of a predicate."""
    found = [sides_agree(part, restriction, both, deadline, False) for part in parts]
    names = tuple(dict.fromkeys(name for one in found for name in one.theorems))
    forward, backward = all(one.forward for one in found), all(one.backward for one in found)
    why = next((one.why for one in found if one.why), "")
    return Proof(forward, backward, names, sum(f.cases for f in found), why, any(f.not_empty for f in found))


def sides_agree(rule: Rule, restriction: Restriction, both: bool, deadline: float, solver: bool) -> Proof:
    """The strongest statement about the two sides that is proved, for values within the restriction."""
    if rule.left is rule.right:
        return Proof(True, True, (), 1)
    facts = facts_of(rule, restriction)
    if reduces(rule.left) or reduces(rule.right):
        still = frozenset(g.operands for g in rule.guards if g.kind == "independent")
        still |= frozenset(constant_along_new_dims(rule))
        sized = frozenset(g for g in rule.guards if g.kind in SIZES_OF)
        proved = Reductions(facts, still, facts.literals, deadline, sized).prove(rule.left, rule.right, both)
        parts = None if proved.forward else by_value(rule)
        return proved if parts is None else _joined(parts, restriction, both, deadline)
    found = compare(rule.left, rule.right, facts, deadline)
    if solver and not found.forward:
        equal, why = index_prover.equal(rule.left, rule.right, rule.guards, restriction.literals_positive, both)
        return Proof(equal, equal and both, ("integer arithmetic by z3",), 1, why)
    return Proof(found.forward, found.backward, ("cells",), found.cases, found.why)

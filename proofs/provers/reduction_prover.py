"""Proves that terms with reductions of any length are equal, by a chain of theorem instances from side to side.

Each step rewrites a reduction by a theorem of theory/. The hypotheses of the theorem, for the terms at hand, are
decided by case_analysis.py. In the end the reductions of both sides agree, and the rest is compared as scalars. A step
may hold in one direction only: where one term is defined, the other equals it. Example: Σ_j (s · c) = (Σ_j s) · c is
one step by Homomorphism.promote.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from time import thread_time

from ...egraph.rewrite.guard import Guard
from ...egraph.terms.ops import (
    MONOIDS,
    OPERATION_OF,
    at,
    combined,
    const,
    iota,
    make,
    max_over,
    maximum,
    reduce,
    size_of,
    sum_over,
    var,
)
from ...egraph.terms.term import PAIR, Dim, Term
from ...egraph.terms.traversal import reduces, substitute, subterms
from . import theorems
from .case_analysis import NOT_NEGATIVE, Comparison, VariableFacts, compare, values_of
from .extended_reals import COMPARISONS, EVERY, NEG, PAIR_OF_REALS, REAL, state_kinds
from .linear_sums import as_operation, parts
from .term_views import factors, hole, holes, joinable, outermost, product, skeleton
from .theorems import RESCALED, THEOREMS, homomorphism, statement

MAX_TERMS_OF_A_SIDE = 40
NOT_EMPTY = "ranges are not empty"
FIXED, PROMOTE, NONEMPTY = "Homomorphism.fixed", "Homomorphism.promote", "Homomorphism.promote_nonempty"
NEEDS_SIGNS = ("log", "log2", "log1p", "sqrt", "rsqrt", "pow", "abs")  # operations that depend on a sign

# Guard about sizes: a theorem, and what it makes a whole reduction of, from monoid, body, dim, and the guard's parts.
DIVIDED: dict[str, tuple[str, Callable[..., Term]]] = {
    "in_blocks": (
        "Monoid.tile",
        lambda m, x, j, b, i: reduce(m, b, reduce(m, i, at(x, j, iota(b) * size_of(i) + iota(i)))),
    ),
    "in_two": (
        "Monoid.split",
        lambda m, x, j, a, b: combined(
            m, reduce(m, a, at(x, j, iota(a))), reduce(m, b, at(x, j, size_of(a) + iota(b)))
        ),
    ),
}


@dataclass(frozen=True)
class TheoremStep:
    """Theorems at one place. forward: where the term before is defined, `after` equals it; backward: conversely."""

    theorems: tuple[str, ...]
    after: Term
    forward: bool
    backward: bool


@dataclass(frozen=True)
class Proof:
    """What is proved of two sides, by which theorems, in how many cases. not_empty: it assumes non-empty ranges."""

    forward: bool
    backward: bool
    theorems: tuple[str, ...]
    cases: int
    why: str = ""
    not_empty: bool = False


@cache
def law_holds(hypothesis: str, name: str) -> bool:
    """Whether a monoid of egraph/terms/ops.py has a property, over the extended reals."""
    facts = VariableFacts(lambda _: EVERY)
    return compare(*statement(hypothesis, theorems.monoid(name), theorems.elements_of(name)), facts).both


@cache
def cascade_holds(hypothesis: str) -> bool:
    """Whether the rescaled sum has a property that the cascade theorem needs, over the reals (no absent elements)."""
    return compare(*statement(hypothesis, RESCALED), VariableFacts(lambda _: (REAL,))).both


@cache
def applies(theorem: str, name: str) -> bool:
    """Whether a theorem about any monoid applies to this one."""
    if name == "rescaled":
        laws = ("Cascade.combine_assoc", "Cascade.combine_unit_left", "Cascade.combine_comm")
        return all(cascade_holds(h) for law in laws for h in THEOREMS[law])
    return all(law_holds(h, name) for h in THEOREMS[theorem])


class Reductions:
    """The prover for one pair of sides.

    facts: what is known of the variables. independent: pairs of a variable and a dim on which it does not depend.
    literals: the variables for literals. deadline: in seconds of `thread_time`. sized: guards about sizes of dims.
    """

    def __init__(
        self,
        facts: VariableFacts,
        independent: frozenset[tuple[Term, Dim]],
        literals: frozenset[Term],
        deadline: float,
        sized: frozenset[Guard] = frozenset(),
    ):
        self.independent, self.literals, self.deadline, self.sized = independent, literals, deadline, sized
        self.atoms: dict[str, tuple] = {}
        kinds = facts.kinds
        self.signs = dict(facts.signs)
        self.signed = False  # whether the signs of reductions matter
        self.facts = VariableFacts(
            lambda name: EVERY if name.startswith("element ") else self.atoms.get(name) or kinds(name),
            self.signs, facts.real_casts, facts.assumed, facts.casts_round, facts.own_casts, literals,
        )  # fmt: skip
        self.cases = 0
        self.not_empty = False  # whether a maximum was taken to be a real
        self._compared: dict[tuple[Term, Term], Comparison] = {}
        self._known: dict[Term, tuple[tuple[str, ...], bool]] = {}  # of reductions: kinds, and whether not negative

    # Scalars ---------------------------------------------------------------------------------------------------------

    def scalar(self, left: Term, right: Term) -> Comparison:
        """Compares two terms as scalars. Equal reductions are one variable."""
        if (left, right) not in self._compared:
            names = self._names([*outermost(left), *outermost(right)])
            names |= {n: self._elsewhere(n) for side in (left, right) for n in subterms(side) if n.op == "at"}
            found = compare(substitute(left, names), substitute(right, names), self.facts, self.deadline)
            self.cases += found.cases
            self._compared[left, right] = found
        return self._compared[left, right]

    def _names(self, found: list[Term]) -> dict[Term, Term]:
        """A variable for every reduction; the same variable for reductions with equal bodies."""
        names: dict[Term, Term] = {}
        for one in found:
            for other in list(names):
                if one is other or (one.attrs == other.attrs and self.scalar(one.args[0], other.args[0]).both):
                    names[one] = names[other]
                    break
            else:
                names[one] = self._atom(one)
        return names

    def _elsewhere(self, node: Term) -> Term:
        """A variable for what a variable is at another place: of the same kinds, and nothing else is known of it."""
        name = f"place {node}"
        self.atoms[name] = self.facts.kinds(node.args[0].attrs[0])
        return var(name, node.dtype)

    def _atom(self, reduction: Term) -> Term:
        kind = MONOIDS[reduction.attrs[0]].dtype
        name = f"reduction {len(self.atoms)}"
        if reduction not in self._known:
            kinds = self._kinds(reduction)
            self._known[reduction] = kinds, self.signed and kinds == (REAL,) and self._is_not_negative(reduction)
        self.atoms[name], not_negative = self._known[reduction]
        if not_negative:
            self.signs[name] = NOT_NEGATIVE
        return var(name, "bool" if kind == "bool" else "any")

    def _kinds(self, reduction: Term) -> tuple[str, ...]:
        """The kinds of a reduction: real, if all its elements are real and the range is not empty."""
        monoid, found = reduction.attrs[0], self._values(reduction.args[0])
        if monoid == "rescaled":
            kinds = state_kinds(found)
            self.not_empty |= kinds == (PAIR_OF_REALS,)
            return kinds
        found = found or {*EVERY}
        if found <= {REAL}:
            self.not_empty |= monoid in ("max", "min")
            return (REAL,)
        return (REAL, NEG) if found <= {REAL, NEG} and monoid in ("sum", "max") else EVERY

    def _is_not_negative(self, reduction: Term) -> bool:
        """Whether max(·, 0) fixes the reduction, by Homomorphism.fixed."""
        return self._fixes(lambda x: maximum(x, const(0.0)), [], reduction)

    def _values(self, x: Term) -> set | None:
        """The kinds of value that a term with reductions takes; None if that is not decided."""
        return values_of(substitute(x, self._names(outermost(x))), self.facts, self.deadline)

    # Steps -----------------------------------------------------------------------------------------------------------

    def depends(self, x: Term, dim: Dim) -> bool:
        """Whether the value may change along the dim. That of a variable may, unless a guard excludes it."""
        if (x, dim) in self.independent or x in self.literals:
            return False
        if x.op in ("var", "load", "size"):
            return x.op != "size"
        if x.op == "reduce" and x.attrs[1] == dim:
            return False
        return dim in x.attrs or any(self.depends(a, dim) for a in x.args)

    def steps(self, root: Term) -> Iterator[TheoremStep]:
        """Every instance of a theorem at any place in the term."""
        inside = {n for r in reduces(root) for n in subterms(r.args[0])} | joinable(root)
        compared = _compared(root)
        for node in list(subterms(root)):
            for step in self._at(node, node in inside):
                if node in compared and not (step.forward and step.backward):
                    continue  # a comparison of a value that was undefined may change
                yield TheoremStep(step.theorems, substitute(root, {node: step.after}), step.forward, step.backward)

    def linear(self, root: Term) -> Iterator[TheoremStep]:
        """One step that brings all sums of the term into linear normal form, inner ones first; none if it has it."""
        compared = _compared(root)
        done: dict[Term, Term] = {}
        names: dict[str, None] = {}
        forward = backward = True
        for node in subterms(root):
            args = tuple(done[a] for a in node.args)
            done[node] = node if args == node.args else make(node.op, args, node.attrs)
            if node.op == "reduce" and node.attrs[0] == "sum":
                step = self._linear_sum(done[node])
                if step is not None and (node not in compared or (step.forward and step.backward)):
                    done[node], forward, backward = step.after, forward and step.forward, backward and step.backward
                    names |= dict.fromkeys(step.theorems)
        if done[root] is not root and (forward or backward):
            yield TheoremStep(tuple(names), done[root], forward, backward)

    def _linear_sum(self, node: Term) -> TheoremStep | None:
        (_, dim), (body,) = node.attrs, node.args
        found = parts(body, lambda x: self.depends(x, dim))
        if found is None or not applies("Monoid.pointwise", "sum"):
            return None
        rewritten = self.scalar(body, product("add", [part.whole for part in found]))
        forward, backward = rewritten.forward, rewritten.backward
        names = ["Monoid.pointwise"] * (len(found) > 1)
        for part in found:
            theorem, moved = self._homomorphism("sum", "sum", lambda x, part=part: part.coefficient * x)
            forward, backward = forward and moved.backward, backward and moved.forward
            names.append(theorem)
        after = product("add", [part.coefficient * reduce("sum", dim, part.moving) for part in found])
        return TheoremStep(tuple(names), after, forward, backward) if forward or backward else None

    def _at(self, node: Term, inside: bool) -> Iterator[TheoremStep]:
        yield from self._whole(node)
        if node.op == "reduce":
            yield from self._pulled(node)
            yield from self._split(node)
            yield from self._exchanged(node)
            yield from self._one_of_parts(node)
        elif node.op in ("scale", "mantissa"):
            yield from self._two_passes(node)
        elif not node.dtype.startswith(PAIR):  # no theorem is about functions whose result is a state
            yield from self._joined(node)
            yield from self._fixed(node)
            if inside:
                yield from self._pushed(node)

    def _pulled(self, node: Term) -> Iterator[TheoremStep]:
        """⊕_j phi(x) = phi(⊕'_j x), if the other parts of phi do not depend on j."""
        (monoid, dim), (body,) = node.attrs, node.args
        for form in self._forms(body, monoid, dim):
            moving = [n for n, a in enumerate(form.args) if self.depends(a, dim)]
            if len(moving) != 1 or form.op in ("reduce", "at") or form.args[moving[0]].dtype.startswith(PAIR):
                continue
            rewritten = Comparison(True, True, 0) if form is body else self.scalar(body, form)
            phi = hole(form, moving[0])
            for source in _sources(monoid):
                yield from self._promoted(source, monoid, phi, form.args[moving[0]], dim, rewritten)

    def _promoted(self, source, target, phi, x, dim, rewritten) -> Iterator[TheoremStep]:
        theorem, found = self._homomorphism(source, target, phi)
        forward, backward = found.backward and rewritten.forward, found.forward and rewritten.backward
        if forward or backward:
            yield TheoremStep((theorem,), phi(reduce(source, dim, x)), forward, backward)

    def _homomorphism(self, source: str, target: str, phi: Callable) -> tuple[str, Comparison]:
        """Compares phi(a ⊕ b) with phi a ⊕' phi b (phi_op). By induction the result holds for the reductions."""
        structure, elements = homomorphism(source, target, phi), theorems.elements_of(source)
        whole = PROMOTE
        found = self.scalar(*statement("phi_op", structure, elements))
        if (found.forward or found.backward) and not self.scalar(*statement("phi_unit", structure, elements)).both:
            whole = NONEMPTY
        return whole, found

    def _pushed(self, node: Term) -> Iterator[TheoremStep]:
        """phi(⊕_k x) = ⊕'_k phi(x): the same theorem in the other direction."""
        for phi, others, inner in holes(node):
            (source, dim), (x,) = inner.attrs, inner.args
            if any(self.depends(a, dim) for a in others):
                continue
            for target in _sources(source):
                theorem, found = self._homomorphism(source, target, phi)
                if found.forward or found.backward:
                    yield TheoremStep((theorem,), reduce(target, dim, phi(x)), found.forward, found.backward)

    def _fixed(self, node: Term) -> Iterator[TheoremStep]:
        """phi(⊕_k x) = ⊕_k x, if phi fixes every x."""
        for phi, others, folded in holes(node):
            if self._fixes(phi, others, folded):
                yield TheoremStep((FIXED,), folded, True, True)

    def _fixes(self, phi: Callable, others: list[Term], folded: Term) -> bool:
        """Whether the hypotheses of Homomorphism.fixed hold. The theorem may also apply to an element x itself."""
        (monoid, dim), (x,) = folded.attrs, folded.args
        if monoid not in OPERATION_OF or any(self.depends(a, dim) for a in others):
            return False
        structure, elements = homomorphism(monoid, monoid, phi), (*theorems.elements_of(monoid)[:2], x)
        known = ("fixed_element",) if x.op == "reduce" and self._fixes(phi, others, x) else ()
        open_hypotheses = (h for h in THEOREMS[FIXED] if h not in known)
        return all(self.scalar(*statement(h, structure, elements)).both for h in open_hypotheses)

    def _forms(self, body: Term, monoid: str, dim: Dim) -> Iterator[Term]:
        """The body, and the body with the factors or addends that do not depend on the dim moved to the right.

        Of a chosen product with 0 elsewhere, its factors move out of the choice.
        """
        yield body
        if body.op == "where" and monoid == "sum" and body.args[2] is const(0.0):
            chosen, kept, nothing = body.args
            for form in self._forms(kept, monoid, dim):
                if form.op == "mul" and self.depends(form.args[0], dim) and not self.depends(form.args[1], dim):
                    yield make("mul", (make("where", (chosen, form.args[0], nothing)), form.args[1]))
        still: list[Term] = []
        moving: list[Term] = []
        for factor in factors(body, monoid, lambda x: self.depends(x, dim)):
            (moving if self.depends(factor, dim) else still).append(factor)
        if still and moving:
            op = "mul" if monoid in ("sum", "prod") else "add"
            form = make(op, (product(op, moving), product(op, still)))
            if form is not body:
                yield form

    def _split(self, node: Term) -> Iterator[TheoremStep]:
        (monoid, dim), (body,) = node.attrs, node.args
        operation = OPERATION_OF.get(monoid, "none")
        form = as_operation(body, operation)
        if form.op == operation and applies("Monoid.pointwise", monoid) and self._is_spelled(body, form):
            after = make(operation, tuple(reduce(monoid, dim, a) for a in form.args))
            yield TheoremStep(("Monoid.pointwise",), after, True, True)

    def _is_spelled(self, body: Term, form: Term) -> bool:
        return body is form or self.scalar(body, form).both

    def _joined(self, node: Term) -> Iterator[TheoremStep]:
        if len(node.args) == 2 and all(a.op == "reduce" for a in node.args):
            a, b = node.args
            operation = OPERATION_OF.get(a.attrs[0])
            if a.attrs == b.attrs and (operation == node.op or self._is_difference(node.op, a.attrs[0])):
                if applies("Monoid.pointwise", a.attrs[0]):
                    monoid, dim = a.attrs
                    after = reduce(monoid, dim, make(node.op, (a.args[0], b.args[0])))
                    yield TheoremStep(("Monoid.pointwise",), after, True, True)

    def _is_difference(self, op: str, monoid: str) -> bool:
        """Whether the operation is a difference of sums: x - y is x + (-y), and -x is a homomorphism of sums."""
        a, b = theorems.ELEMENTS[:2]
        negation = homomorphism("sum", "sum", lambda x: -x)
        sums = op == "sub" and monoid == "sum"
        return sums and all(self.scalar(*e).both for e in ((a - b, a + -b), statement("phi_op", negation)))

    def _exchanged(self, node: Term) -> Iterator[TheoremStep]:
        (monoid, dim), (inner,) = node.attrs, node.args
        if inner.op == "reduce" and inner.attrs[0] == monoid and inner.attrs[1] != dim:
            if applies("Monoid.fubini", monoid):
                after = reduce(monoid, inner.attrs[1], reduce(monoid, dim, inner.args[0]))
                yield TheoremStep(("Monoid.fubini",), after, True, True)

    def _whole(self, node: Term) -> Iterator[TheoremStep]:
        """What reductions over parts of a dim are together: the reduction over the dim, whose size a guard divides."""
        for guard in self.sized:
            theorem, divided = DIVIDED[guard.kind]
            dim, *parts = guard.operands
            for monoid, x in {(r.attrs[0], r.args[0].args[0]) for r in reduces(node) if r.args[0].op == "at"}:
                if (guard.kind == "in_two" and monoid not in OPERATION_OF) or self._any_depends(x, *parts):
                    continue
                if node is divided(monoid, x, dim, *parts) and applies(theorem, monoid):
                    yield TheoremStep((theorem,), reduce(monoid, dim, x), True, True)

    def _any_depends(self, x: Term, *dims: Dim) -> bool:
        return any(self.depends(x, dim) for dim in dims)

    def _one_of_parts(self, node: Term) -> Iterator[TheoremStep]:
        """⊕_p (x where c mod |p| = p) is x, if x and c do not depend on p, and p has an element."""
        (monoid, dim), (body,) = node.attrs, node.args
        if body.op not in ("only", "where"):
            return
        kept, x = body.args[:2]
        absent = body.op == "only" or body is make("only", (kept, x), (monoid,))
        if not absent or kept.op != "eq" or kept.args[1] is not iota(dim) or kept.args[0].op != "mod":
            return
        part, count = kept.args[0].args
        if count is size_of(dim) and not self._any_depends(x, dim) and not self._any_depends(part, dim):
            if applies("Monoid.partition", monoid):
                self.not_empty = True
                yield TheoremStep(("Monoid.partition",), x, True, True)

    def _two_passes(self, node: Term) -> Iterator[TheoremStep]:
        """A fold of rescaled pairs in two passes: its scale is the largest score, its mantissa a sum of views."""
        (state,) = node.args
        if state.op != "reduce" or state.attrs[0] != "rescaled" or state.args[0].op != "scaled":
            return
        dim, (score, weight) = state.attrs[1], state.args[0].args
        if not all(map(cascade_holds, THEOREMS["Cascade.cascade_absent"])) or not self._can_be_absent(score, weight):
            return
        highest = max_over(dim, score)
        after = highest if node.op == "scale" else sum_over(dim, RESCALED.view(highest, score, weight))
        yield TheoremStep(("Cascade.cascade_absent",), after, True, True)

    def _can_be_absent(self, score: Term, weight: Term) -> bool:
        """Whether scores are reals or -∞, weights are reals, and the view of an element with the score -∞ is 0."""
        kinds = [self._values(side) for side in (score, weight)]
        if None in kinds or kinds[0] - {REAL, NEG} or kinds[1] - {REAL}:
            return False
        gone = RESCALED.view(theorems.SCORE, const(float("-inf")), weight)
        self.atoms[theorems.SCORE.attrs[0]] = (REAL,)
        return self.scalar(gone, const(0.0)).both

    # Search ----------------------------------------------------------------------------------------------------------

    def prove(self, left: Term, right: Term, both: bool) -> Proof:
        """The best chain from side to side within the limits. `both`: it is to hold in both directions."""
        self.signed = any(n.op in NEEDS_SIGNS for side in (left, right) for n in subterms(side))
        sides = (_Side(left), _Side(right))
        best = Proof(False, False, (), 0, "no chain of theorems joins the sides")
        best = self._best(sides, [left, right], best, both)
        if not _is_enough(best, both):
            for side in sides:
                side.use_late(self)
            best = self._best(sides, self._fresh(sides), best, both)
        names = (*best.theorems, *([FIXED] if NOT_NEGATIVE in self.signs.values() else ()))
        return Proof(best.forward, best.backward, names or ("cells",), self.cases, best.why, self.not_empty)

    def _best(self, sides, fresh: list[Term | None], best: Proof, both: bool) -> Proof:
        """The best chain by the new terms of both sides, and by those that follow until there are none."""
        while fresh != [None, None]:
            for n, term in enumerate(fresh):
                if term is not None:
                    best = self._met(sides, n, term, best)
            if _is_enough(best, both):
                break
            fresh = self._fresh(sides)
        return best

    def _fresh(self, sides) -> list[Term | None]:
        """One more term of each side, if there is one, and time."""
        return [side.next(self) if thread_time() < self.deadline else None for side in sides]

    def _met(self, sides, n: int, term: Term, best: Proof) -> Proof:
        """Compares a new term of one side with every known term of the other side that has the same reductions."""
        for other in list(sides[1 - n].known):
            mine, its = skeleton(term), skeleton(other)
            if not (mine <= its or its <= mine):  # a reduction may cancel on one side, not on both
                continue
            a, b = (term, other) if n == 0 else (other, term)
            found = self.scalar(a, b)
            (f, g, names), (h, i, more) = sides[0].known[a], sides[1].known[b]
            proof = Proof(f and found.forward and i, g and found.backward and h, names + more, 0, found.why)
            if (proof.forward, proof.backward) > (best.forward, best.backward):
                best = proof
        return best


def _is_enough(proof: Proof, both: bool) -> bool:
    return proof.forward and (proof.backward or not both)


class _Side:
    """The terms that one side was shown to equal, each with the proved directions and the theorems."""

    def __init__(self, start: Term):
        self.known: dict[Term, tuple[bool, bool, tuple[str, ...]]] = {start: (True, True, ())}
        self.start, self.waiting = start, [start]
        self.last: list[Term] = []  # terms in linear normal form are looked at when there are no others
        self.late: list[TheoremStep] = []
        self.found: Iterator[Term] | None = None

    def next(self, prover: Reductions) -> Term | None:
        """One more term; None if there is none."""
        if self.found is None:
            self.found = self._search(prover)
        return next(self.found, None)

    def use_late(self, prover: Reductions) -> None:
        """From now on, steps count that assume ranges that are not empty: the last resort."""
        self.found = self._search_late(prover)

    def _search(self, prover: Reductions) -> Iterator[Term]:
        for step in prover.linear(self.start):
            if NONEMPTY in step.theorems:
                self.late.append(step)
                continue
            self.last += self._kept(self.start, step)
            yield from self.last
        yield from self._steps(prover)

    def _search_late(self, prover: Reductions) -> Iterator[Term]:
        for step in self.late:
            found = self._kept(self.start, step, MAX_TERMS_OF_A_SIDE + 1)
            self.last += found
            yield from found
        yield from self._steps(prover)

    def _steps(self, prover: Reductions) -> Iterator[Term]:
        while self.waiting or self.last:
            source = self.waiting or self.last
            term = min(source, key=lambda term: len(reduces(term)))  # joined reductions first
            source.remove(term)
            for step in prover.steps(term):
                for after in self._kept(term, step):
                    self.waiting.append(after)
                    yield after

    def _kept(self, term: Term, step: TheoremStep, most: int = MAX_TERMS_OF_A_SIDE) -> list[Term]:
        """The term after a step, if it is new and there is room; it is then known."""
        forward, backward, names = self.known[term]
        flags = forward and step.forward, backward and step.backward
        if not any(flags) or step.after in self.known or len(self.known) >= most:
            return []
        self.known[step.after] = (*flags, (*names, *step.theorems))
        return [step.after]


def _compared(root: Term) -> set[Term]:
    """The subterms of comparisons."""
    return {n for c in subterms(root) if c.op in (*COMPARISONS, "finite") for n in subterms(c)}


def _sources(monoid: str) -> list[str]:
    """The monoids from which a homomorphism to this monoid may go, itself first."""
    if monoid not in OPERATION_OF:
        return []
    kind = MONOIDS[monoid].dtype
    return [monoid, *(name for name in OPERATION_OF if name != monoid and MONOIDS[name].dtype == kind)]

"""`python -m tests.proofs.fuzz --count 100000`: random claims for the provers; what they prove is evaluated at points.

The provers are asked without their search for counterexamples, so that a false proof is not hidden by a refutation. A
false proof is printed with the seed, the claim and the point.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from fractions import Fraction
from random import Random
from time import perf_counter, thread_time

from onepass.egraph.rewrite.rule import Rule
from onepass.egraph.sampling.samples import variables_under_exponents
from onepass.egraph.terms.ops import make
from onepass.egraph.terms.term import AttributeVariable, Dim, Term
from onepass.egraph.terms.traversal import all_dims, rebuild, subterms
from onepass.proofs.check import Attempt, check, prove
from onepass.proofs.provers.claims import FINITE_BACKWARD, cases
from onepass.proofs.provers.reduction_prover import NOT_EMPTY
from tests.proofs.fuzz.claims import claims
from tests.proofs.fuzz.exact_values import INF, Skip, Values, number, same

SECONDS_OF_A_PROOF = 0.1
POINTS = 20
COMPARISONS = ("lt", "le", "eq")
NUMBERS = (0, 1, -1, 2, -2, 3, Fraction(1, 2), Fraction(-3, 4), Fraction(7, 5), Fraction(-1, 3), 5, Fraction(-9, 2))
DTYPES = ("float32", "float16", "int64", "bool")
LARGEST_CONSTANT = 1e6  # that is drawn for a variable


@dataclass(frozen=True)
class Outcome:
    """Counts of claims, proofs, and evaluated points, and a text for each false proof."""

    claims: int
    proved: int
    points: int
    false: tuple[str, ...]
    seconds: float

    def __str__(self) -> str:
        head = f"{self.claims} claims in {self.seconds:.0f} s: {self.proved} proved, {self.points} points evaluated"
        return "\n".join([f"{head}, {len(self.false)} false proofs", *self.false])


def fuzz(many: int, seed: int, shown=lambda line: None, seconds: float = SECONDS_OF_A_PROOF) -> Outcome:
    """Lets the provers decide random claims, each in so many seconds, and evaluates what they prove."""
    start, proved, points, false = perf_counter(), 0, 0, []
    for n, claim in zip(range(many), claims(seed)):
        found = _decision(claim, seconds)
        if found.holds:
            proved += 1
            met, wrong = false_at(claim, found, Random(f"{seed} {n}"))
            points += met
            if wrong:
                false.append(f"FALSE PROOF, seed {seed}, claim {n}: {claim} ({claim.exact}, {found.method})\n{wrong}")
                shown(false[-1])
        if n % 5000 == 4999:
            shown(f"{n + 1} claims, {proved} proved, {len(false)} false, {perf_counter() - start:.0f} s")
    return Outcome(many, proved, points, tuple(false), perf_counter() - start)


def _decision(claim: Rule, seconds: float) -> Attempt:
    """What the provers say. Laws that claim equal bits are tested with random instances, so the whole check decides."""
    try:
        if claim.exact == "bitwise":
            found = check(claim, seconds)
            return Attempt(found.status == "proved", found.method, found.assumptions)
        return prove(claim, thread_time() + seconds)
    except Exception:  # check() takes a prover that fails for one that proves nothing
        return Attempt(False)


def false_at(claim: Rule, found: Attempt, random: Random) -> tuple[int, str]:
    """The number of points at which the claim was evaluated, and the first one at which it fails, as a text."""
    met = 0
    compares = any(n.op in COMPARISONS for side in (claim.left, claim.right) for n in subterms(side))
    for law in cases(claim):
        for n in range(POINTS):
            point = _Point(law, found, random, plain=n < 4)
            for truth in (False, True) if compares else (False,):
                try:
                    sides = [point.value(side, truth) for side in (law.left, law.right)]
                except (Skip, OverflowError, MemoryError):
                    continue
                met += 1
                if _fails(law, found, *sides):
                    return met, f"  {law.left} = {sides[0]}\n  {law.right} = {sides[1]}\n  {point}"
    return met, ""


def _fails(law: Rule, found: Attempt, left, right) -> bool:
    """Whether the values are not what a proof of the law says."""
    undefined = lambda x: x is None or (isinstance(x, tuple) and None in x)
    if law.defined_alike:
        return not same(left, right)
    if not undefined(left) and not same(left, right):
        return True
    backward = law.both and FINITE_BACKWARD not in found.assumptions
    return backward and not undefined(right) and not same(left, right)


class _Point:
    """Random values of the variables of a law that its guards and its assumption allow."""

    def __init__(self, law: Rule, found: Attempt, random: Random, plain: bool):
        self.law, self.random, self.plain = law, random, plain
        least = 1 if NOT_EMPTY in found.assumptions else 0
        dims = dict.fromkeys((*all_dims(law.left), *all_dims(law.right)))
        self.sizes = {d: random.choice((least, 1, 2, 3)) for d in dims}
        self.dtypes: dict[str, str] = {}
        self.known: dict[tuple, object] = {}
        nodes = [n for side in (law.left, law.right) for n in subterms(side)]
        constants = [n.attrs[0] for n in nodes if n.op == "const" and not isinstance(n.attrs[0], bool)]
        own = [Fraction(c) for c in constants if abs(c) < LARGEST_CONSTANT]
        self.numbers = [*NUMBERS, *own, *(c + e for c in own for e in (1, -1, Fraction(1, 1000), c))]
        self.has_dtypes = any(isinstance(a, AttributeVariable) for n in nodes for a in n.attrs)
        self.kinds = {n.attrs[0]: n for n in nodes if n.op == "var"}
        self.scores = variables_under_exponents(law.left)
        self.states = any(n.op == "reduce" and n.attrs[0] == "rescaled" for n in subterms(law.left)) and not any(
            n.op == "scaled" for n in subterms(law.left)
        )
        still = [g.operands for g in law.guards if g.kind == "independent" and g.operands[0].op == "var"]
        self.still = {(x.attrs[0], dim) for x, dim in still}

    def __str__(self) -> str:
        return f"sizes {({d.name: n for d, n in self.sizes.items()})}, {self.dtypes}, {self.known}"

    def value(self, side: Term, truth: bool):
        """The value of a side, at the first coordinate of every free dim."""
        self.sizes |= {d: max(1, self.sizes[d]) for d in side.dims}
        names = {n: lambda at, n=n: self._variable(n, at) for n in self.kinds}
        literals = frozenset(v for n, v in self.kinds.items() if self._is_literal(n))
        values = Values(names, self.sizes, truth, literals)
        plain = rebuild(side, self._with_dtypes) if self.has_dtypes else side
        return values.value(plain, dict.fromkeys(side.dims, 0))

    def _guards(self, name: str) -> set[str]:
        return {g.kind for g in self.law.guards if g.operands[0] is self.kinds[name]}

    def _is_literal(self, name: str) -> bool:
        return bool(self._guards(name) & {"constant", "positive", "nonzero"})

    def _with_dtypes(self, node: Term, args):
        return make(node.op, args, tuple(map(self._dtype, node.attrs)))

    def _dtype(self, attribute):
        if not isinstance(attribute, AttributeVariable):
            return attribute
        guards = [g for g in self.law.guards if g.kind in ("float_dtype", "has_dtype")]
        floats = any(g.operands[-1] == attribute for g in guards)  # a variable of this dtype is drawn as a real
        return self.dtypes.setdefault(attribute.name, self.random.choice(DTYPES[:2] if floats else DTYPES))

    def _variable(self, name: str, at: dict[Dim, int]):
        """The value at the coordinates: a variable may depend on every dim that no guard excludes."""
        free = () if self._is_literal(name) else sorted((d, n) for d, n in at.items() if (name, d) not in self.still)
        key = (name, tuple(free))
        if key not in self.known:
            self.known[key] = self._drawn(name)
        return self.known[key]

    def _drawn(self, name: str):
        dtype, random = self.kinds[name].dtype, self.random
        if dtype == "bool":
            return random.random() < 0.5
        restriction, guards = self.law.restriction, self._guards(name)
        if dtype == "int64":
            drawn = random.choice([n for n in range(-7, 8)] + [int(n) for n in self.numbers if n == int(n)])
            positive = "positive" in guards or ("nonzero" in guards and restriction.literals_positive)
            positive |= "constant" in guards and restriction.literals_positive
            return number(Fraction(abs(drawn) + 1 if positive else drawn or 1 if "nonzero" in guards else drawn))
        if self.states:
            return (-INF, None) if random.random() < 0.3 else (self._real(set()), self._real(set()))
        finite = restriction.scores_finite if name in self.scores else restriction.values_finite
        if self._is_literal(name):
            infinite = random.random() < 0.1 and guards == {"constant"}
            return random.choice((INF, -INF)) if infinite else self._real(guards)
        return -INF if not finite and not self.plain and random.random() < 0.25 else self._real(guards)

    def _real(self, guards: set[str]):
        drawn = self.random.choice(self.numbers) if self.random.random() < 0.8 else self.random.gauss(0, 2)
        if "positive" in guards:
            drawn = abs(drawn)
        if not drawn and guards & {"positive", "nonzero"}:
            drawn = 1
        return number(Fraction(drawn))


def main() -> int:
    """Reads the options, prints what was found, and returns 1 if there is a false proof."""
    options = argparse.ArgumentParser(prog="python -m tests.proofs.fuzz", description=__doc__.partition("\n")[0])
    options.add_argument("--count", type=int, default=2000, help="random claims")
    options.add_argument("--seed", type=int, default=0)
    given = options.parse_args()
    found = fuzz(given.count, given.seed, lambda line: print(line, flush=True))
    print(found)
    return 1 if found.false else 0

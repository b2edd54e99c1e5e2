"""Proves that two scalar terms are equal for all values, by going through all cases.

A case fixes the kind of every variable (a real, ±∞, undefined) and the sign of every real that a meaning needs. In each
case both sides are quotients of polynomials, which are compared exactly. "Yes" is a proof over the extended reals; "no"
only means that some case was not shown to be equal. Example: max(x, y) = max(y, x) has the cases x < y, x = y and x >
y.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from time import thread_time
from typing import Any

from ...egraph.terms.term import FLOATS, Term
from ...egraph.terms.traversal import subterms
from ..algebra.bounds import bounds_of
from ..algebra.functions import atoms_within, content, log_of_number, product_of_logs, substituted
from ..algebra.linear_inequalities import feasible
from ..algebra.polynomial import (
    ONE,
    Monomial,
    Polynomial,
    Quotient,
    Undecided,
    add,
    data_of,
    equal,
    frozen,
    is_positive,
    logarithm,
    number,
    of_atom,
    square,
)
from .extended_reals import (
    ABSENT,
    ANY_PAIR,
    COMPARISONS,
    EVERY,
    MEANINGS,
    NEG,
    PAIR_OF_REALS,
    REAL,
    UNDEFINED,
    ExtendedReal,
    kind_of,
    literal,
    opaque,
    same,
)

MAX_CASES = 20_000
CASES_OF_A_LOOK = 32  # between two looks at the clock, which may take as long as a case
NOT_NEGATIVE = 2  # beside the signs 1, 0 and -1: a fact about a variable
SIGNS_OF = {1: (1,), 0: (1, -1), NOT_NEGATIVE: (1, 0), None: (1, 0, -1)}  # what a fact allows


@dataclass(frozen=True)
class Comparison:
    """What is shown of two sides, in how many cases, and why not more.

    forward: where the left side is defined, the right side equals it. backward: the same with the sides exchanged.
    """

    forward: bool
    backward: bool
    cases: int
    why: str = ""

    @property
    def both(self) -> bool:
        """Whether the sides are equal in both directions."""
        return self.forward and self.backward


@dataclass
class VariableFacts:
    """What is known of the variables. `kinds`: the kinds that one may have. `signs`: keys of SIGNS_OF, 1 for > 0."""

    kinds: Callable[[str], tuple]
    signs: Mapping[str, int] = field(default_factory=dict)
    real_casts: frozenset = frozenset()  # dtypes, or variables for dtypes: a cast to one of them changes no real
    assumed: tuple[Term, ...] = ()  # conditions that hold
    casts_round: bool = False  # instead, such a cast is an unknown increasing function that keeps ±∞
    own_casts: frozenset = frozenset()  # (variable, dtype): a cast that changes nothing, even by rounding
    literals: frozenset = frozenset()  # variables for literals: a cast may make them infinite


class _Path:
    """One case: the decisions so far, the signs that they fix, and substitutions for variables that are solved."""

    def __init__(self, prefix: list[int], facts: VariableFacts):
        self.prefix, self.facts, self.peeking = prefix, facts, False
        self.taken: list[tuple[int, int]] = []  # which option of how many
        self.known: dict[tuple, Any] = {}
        self.signs: list[tuple[Polynomial, int]] = []
        self.solved: list[dict[int, Quotient]] = []

    def choose(self, question: tuple, options: tuple) -> Any:
        """The option that this case takes for the question; a new question makes a case of each option."""
        if question not in self.known:
            self.known[question] = options[self._next(len(options))]
        return self.known[question]

    def said(self) -> str:
        """The case in words: what its variables are, and how many signs it decides."""
        kinds = [f"{question[1]} is {kind}" for question, kind in self.known.items() if question[0] == "variable"]
        signs = f"{len(self.signs)} sign{'' if len(self.signs) == 1 else 's'} decided"
        return f"the case that {', '.join(kinds)} ({signs})" if kinds else f"a case with {signs}"

    def _next(self, count: int) -> int:
        place = len(self.taken)
        picked = self.prefix[place] if place < len(self.prefix) else 0
        self.taken.append((picked, count))
        return picked

    def sign(self, q: Quotient) -> int:
        """The sign of a real in this case: 1, 0 or -1. May decide it, which makes cases."""
        for values in self.solved:
            q = substituted(q, values)
        return self._sign(q.over) * (1 if q.under == ONE else self._sign(q.under))

    def implied(self, q: Quotient) -> int | None:
        """The sign of a real, if the decisions so far leave only one; None else. Decides nothing."""
        self.peeking = True
        try:
            return self.sign(q)
        except _Open:
            return None
        finally:
            self.peeking = False

    def _sign(self, p: Polynomial) -> int:
        if not p:
            return 0
        common, rest = content(p)
        sign = 1
        for place, power in common:
            if not is_positive(place):
                own = self._decided({((place, Fraction(1)),): Fraction(1)})
                sign *= own if power % 2 else own * own
        return sign * self._sign_of_rest(rest) if sign else 0

    def _sign_of_rest(self, p: Polynomial) -> int:
        """The sign of a polynomial without a common monomial."""
        signs = {1 if c > 0 else -1 for c in p.values()}
        if len(signs) == 1 and all(_not_negative(m) for m in p) and any(_positive(m) for m in p):
            return signs.pop()
        if len(p) == 2 and (sign := self._sign_of_difference(p)) is not None:
            return sign
        if (exponential := product_of_logs(p)) is not None:
            return self.sign(exponential - number(1))
        if len(p) > 2 and (found := square(p)):
            return (1 if found[0] > 0 else -1) * self._sign(found[1]) ** 2
        return self._decided(p)

    def _sign_of_difference(self, p: Polynomial) -> int | None:
        """The sign of c · f(x) - d · g(y) for c, d > 0: of exponentials by logarithms, of increasing functions."""
        (m, c), (n, d) = sorted(p.items(), key=lambda item: -item[1])
        if c <= 0 or d >= 0:
            return None
        up, down = logarithm(m), logarithm(n)
        if up is not None and down is not None:
            return self._sign(add(add(up, down, -1), log_of_number(c / -d)))
        arguments = _increasing(m, n) if c == -d else None
        return self._sign_of_increasing(p, self.sign(arguments[0] - arguments[1])) if arguments else None

    def _sign_of_increasing(self, p: Polynomial, sign: int) -> int:
        """The sign of a difference of roundings or floors: the sign of the difference before, or 0."""
        question = ("not constant", frozen(p))
        if sign and self.peeking and question not in self.known:
            raise _Open
        kept = sign and self.choose(question, (True, False))
        if not kept:
            self._solve(p)
        return sign if kept else 0

    def _decided(self, p: Polynomial) -> int:
        """The sign of a polynomial that no simpler method gives: every feasible sign is a case."""
        leading = p[min(p)]
        p, flip = {m: c / abs(leading) for m, c in p.items()}, 1
        if leading < 0:
            p, flip = {m: -c for m, c in p.items()}, -1
        question = ("sign", frozen(p))
        if question not in self.known:
            options = [s for s in self._given(p) if self._feasible(p, s)]
            if not options:
                raise _Impossible
            if self.peeking and len(options) > 1:
                raise _Open
            if self.peeking:
                return flip * options[0]
            sign = options[self._next(len(options))]
            self.known[question] = sign
            self.signs.append((p, sign))
            if sign == 0:
                self._solve(p)
        return flip * self.known[question]

    def _feasible(self, p: Polynomial, sign: int) -> bool:
        """Whether the polynomial may have the sign, as far as linear inequalities tell."""
        signs = [*self.signs, (p, sign)]
        return feasible(signs, bounds_of([q for q, _ in signs]))

    def _given(self, p: Polynomial) -> tuple[int, ...]:
        """The signs that the facts allow, if the polynomial is a variable; else all three."""
        (monomial, *others) = p
        if not others and len(monomial) == 1 and data_of(monomial[0][0])[0] in ("var", "integer"):
            fact = self.facts.signs.get(data_of(monomial[0][0])[1])
            return SIGNS_OF[fact]
        return (1, 0, -1)

    def _solve(self, p: Polynomial) -> None:
        """Uses p = 0 as a substitution for a variable in which p is linear, if there is one."""
        q = Quotient(p, ONE)
        for values in self.solved:
            q = substituted(q, values)
        occurring = [a for m in q.over for a in atoms_within(m)]
        for monomial, c in q.over.items():
            if len(monomial) == 1 and monomial[0][1] == 1 and occurring.count(monomial[0][0]) == 1:
                rest = {m: -d / c for m, d in q.over.items() if m != monomial}
                self.solved.append({monomial[0][0]: Quotient(rest, ONE)})
                return

    def equal(self, a: Quotient, b: Quotient) -> bool:
        """Whether two reals are equal in this case."""
        for values in self.solved:
            a, b = substituted(a, values), substituted(b, values)
        return equal(a, b) or bool(a.under and b.under and self.implied(a - b) == 0)


class _Impossible(Exception):
    """The case cannot occur."""


class _Open(Exception):
    """The decisions so far do not fix a sign."""


def _increasing(m: Monomial, n: Monomial) -> list[Quotient] | None:
    """The arguments of two roundings to one dtype, or of two floors, if both monomials are such functions."""
    if [e for _, e in (*m, *n)] != [1, 1]:
        return None
    kinds = [data_of(place) for place, _ in (*m, *n)]
    if any(kind[0] not in ("rounded", "floor") or kind[:-2] != kinds[0][:-2] for kind in kinds):
        return None
    return [Quotient(*map(dict, kind[-2:])) for kind in kinds]


def _is_rounded(q: Quotient, dtype: str) -> bool:
    """Whether the real is the result of a cast to the dtype, which a second cast to it does not change."""
    (monomial, factor), *others = q.over.items() or [((), 0)]
    if others or q.under != ONE or factor != 1 or [e for _, e in monomial] != [1]:
        return False
    return data_of(monomial[0][0])[:2] == ("rounded", dtype)


def _positive(m: Monomial) -> bool:
    return all(is_positive(a) for a, _ in m)


def _not_negative(m: Monomial) -> bool:
    return all(is_positive(a) or e % 2 == 0 for a, e in m)


class Evaluator:
    """The values of terms in one case."""

    def __init__(self, path: _Path):
        self.path = path
        self.done: dict[Term, ExtendedReal] = {}

    def value(self, root: Term) -> ExtendedReal:
        """The value of the term in this case. Raises Undecided for a term that the prover has no meaning for."""
        for node in subterms(root):
            if node not in self.done:
                self.done[node] = self._value(node, [self.done[a] for a in node.args])
        return self.done[root]

    def _value(self, node: Term, args: list):
        if node.op == "var":
            return self._variable(*node.attrs)
        if node.op == "const":
            return literal(node.attrs[0])
        if node.op == "cast":
            return self._cast(node, args[0])
        if node.op == "reduce":
            raise Undecided("a reduction, whose value is no function of one element")
        if node.op in COMPARISONS and UNDEFINED in args:
            return self.path.choose(("undefined truth", node), (True, False))  # NaN and 1/0 compare differently
        if node.op in MEANINGS:
            return MEANINGS[node.op](*args, self.path)
        return opaque(f"{node.op} {node.attrs}", args, self.path)

    def _variable(self, name: str, dtype: str):
        kinds = (True, False) if dtype == "bool" else self.path.facts.kinds(name)
        kind = self.path.choose(("variable", name), kinds)
        if kind in (PAIR_OF_REALS, ABSENT, ANY_PAIR):
            return self._state(name, kind)
        return of_atom("integer" if dtype == "int64" else "var", name) if kind == REAL else kind

    def _state(self, name: str, kind: str) -> tuple:
        """A rescaled state as the pair of its scale and mantissa. An absent state has the scale -∞ and no mantissa."""
        parts = f"{name} scale", f"{name} mantissa"
        if kind == ABSENT:
            return NEG, UNDEFINED
        if kind == PAIR_OF_REALS:
            return tuple(of_atom("var", part) for part in parts)
        kinds = [self.path.choose(("variable", part), EVERY) for part in parts]
        return tuple(of_atom("var", part) if kind == REAL else kind for part, kind in zip(parts, kinds))

    def _cast(self, node: Term, value):
        """A cast to a float dtype changes no real, or rounds it, and makes 1 of true and 0 of false.

        Of literals, and to other dtypes, it is opaque.
        """
        dtype, operand = node.attrs[0], node.args[0]
        known = dtype in FLOATS or dtype in self.path.facts.real_casts
        if (operand, dtype) in self.path.facts.own_casts:
            return value
        if known and isinstance(value, bool):
            return literal(float(value))
        if known and operand not in self.path.facts.literals:
            rounds = self.path.facts.casts_round and isinstance(value, Quotient) and not _is_rounded(value, str(dtype))
            return of_atom("rounded", str(dtype), *value.key) if rounds else value
        if operand.op == "cast" and operand.attrs[0] == dtype:
            return value
        if value == UNDEFINED and not known:
            return self._cast_of_undefined(node, dtype)
        return opaque(f"cast {dtype}", [value], self.path)

    def _cast_of_undefined(self, node: Term, dtype):
        """To another dtype than a float it is some number, or some truth value."""
        if not isinstance(dtype, str):
            raise Undecided("a cast of an undefined value to any dtype")
        if dtype == "bool":
            return self.path.choose(("undefined truth", node), (True, False))
        return of_atom("integer", f"undefined {node!r}")


def compare(left: Term, right: Term, facts: VariableFacts, deadline: float = float("inf")) -> Comparison:
    """Compares two terms without reductions in all cases. A question that it cannot decide counts as not shown."""
    forward = backward = True
    why, cases = "", 0

    def look(path: _Path, evaluator: Evaluator) -> bool:
        nonlocal forward, backward, why
        if any(evaluator.value(condition) is not True for condition in facts.assumed):
            raise _Impossible
        a, b = evaluator.value(left), evaluator.value(right)
        if not same(a, b, path.equal):
            forward &= a == UNDEFINED
            backward &= b == UNDEFINED
            why = why or f"the sides differ, or could not be seen to be equal, in {path.said()}"
        return forward or backward

    try:
        cases = _walk(look, facts, deadline)
    except Undecided as error:
        return Comparison(False, False, cases, str(error))
    return Comparison(forward, backward, cases, "" if forward and backward else why)


def values_of(root: Term, facts: VariableFacts, deadline: float = float("inf")) -> set | None:
    """The kinds of value that a term takes; None if that cannot be decided."""
    found = set()

    def look(path: _Path, evaluator: Evaluator) -> bool:
        found.add(kind_of(evaluator.value(root)))
        return True

    try:
        _walk(look, facts, deadline)
    except Undecided:
        return None
    return found


def _walk(look: Callable[[_Path, Evaluator], bool], facts: VariableFacts, deadline: float) -> int:
    """Calls `look` with every case until it returns False. Returns the number of cases. Raises Undecided at a limit."""
    waiting: list[list[int]] = [[]]
    cases = 0
    while waiting:
        prefix = waiting.pop()
        path = _Path(prefix, facts)
        cases += 1
        try:
            enough = not look(path, Evaluator(path))
        except _Impossible:
            enough = False
        if enough:
            break
        if cases > MAX_CASES or (cases % CASES_OF_A_LOOK == 0 and thread_time() > deadline):
            raise Undecided(f"more than {cases} cases, or no time left")
        taken = [picked for picked, _ in path.taken]
        for place in range(len(prefix), len(path.taken)):
            waiting += [[*taken[:place], other] for other in range(1, path.taken[place][1])]
    return cases

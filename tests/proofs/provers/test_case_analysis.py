"""The decision procedure against numbers: what it proves of random terms holds at every point of a hostile grid."""

from fractions import Fraction
from itertools import product
from math import inf
from random import Random

import numpy as np
import pytest

from onepass.egraph.rewrite.rule import Rule, variables_of
from onepass.egraph.sampling.mutants import mutants
from onepass.egraph.terms.evaluate import evaluate
from onepass.egraph.terms.ops import const, exp, log, lt, maximum, minimum, sqrt, tanh, var, where
from onepass.proofs.algebra.linear_inequalities import feasible
from onepass.proofs.algebra.polynomial import ONE, add, exponential, multiply, of_atom, square
from onepass.proofs.provers.case_analysis import VariableFacts, compare
from onepass.proofs.provers.extended_reals import EVERY, NEG, REAL

A, B, C = map(var, "abc")
GRID = [dict(zip("abc", map(np.array, point))) for point in product((-2.0, -0.5, 0.0, 1.0, 3.0, -inf), repeat=3)]
ABSENT, FINITE = VariableFacts(lambda _: (REAL, NEG)), VariableFacts(lambda _: (REAL,))


def random_term(random: Random, depth: int):
    """A term without divisions, whose value in float64 is its value here up to rounding."""
    if depth == 0:
        return random.choice([A, B, C, const(0.0), const(1.0), const(-2.0), const(-inf)])
    x, y, z = (random_term(random, depth - 1) for _ in range(3))
    made = [x + y, x - y, x * y, -x, exp(minimum(x, const(1.0))), maximum(x, y), minimum(x, y), where(lt(x, y), y, z)]
    return random.choice(made)


def differs(left, right, points) -> bool:
    """Whether the right side is something else where the left side is a number, on the grid."""
    for point in points:
        a, b = float(evaluate(left, point)), float(evaluate(right, point))
        if not np.isnan(a) and not (a == b or abs(a - b) < 1e-9 * (1 + abs(a))):
            return True
    return False


@pytest.mark.sampled(1)
@pytest.mark.parametrize("seed", range(4))
def test_nothing_is_proved_that_a_point_refutes(seed):
    random, proved = Random(seed), 0
    for _ in range(12):
        term = random_term(random, 2)
        used = tuple((name, "") for name in sorted(variables_of(term)))
        law = Rule("random", "x + 0 = x", term + 0.0, term, used)
        assert compare(law.left, law.right, ABSENT).both
        for mutant in list(mutants(law))[:15]:
            if compare(mutant.left, mutant.right, ABSENT).forward:
                proved += 1
                assert not differs(mutant.left, mutant.right, GRID[:: random.choice([1, 2])]), mutant
    assert proved, "nothing was proved, so nothing was tested"


IDENTITIES = {
    "associativity of the rescaled sum": (
        (A * exp(B - maximum(B, C)) + exp(C - maximum(B, C))) * exp(maximum(B, C) - maximum(maximum(B, C), A)),
        A * exp(B - maximum(B, maximum(C, A))) + exp(C - maximum(maximum(B, C), A)),
    ),
    "a power of two exponents": (exp((A - B) / 2.0) * exp((A - B) / 2.0), exp(A - B)),
    "largest minus smallest": (maximum(A, B) - minimum(A, B), maximum(A - B, B - A)),
    "a quotient of shifted exponentials": (exp(A - C) / (exp(A - C) + exp(B - C)), exp(A) / (exp(A) + exp(B))),
    "tanh is odd": (tanh(-A), -tanh(A)),
    "a mean of parts": ((A * exp(C) + B * exp(C)) / exp(C), A + B),
    "a square is not negative": (maximum(A * A * 3.0 + B * B * 3.0 - A * B * 6.0, const(0.0)), (A - B) * (A - B) * 3.0),
    "a square turned round": (minimum(A * C * 2.0 - A * A - C * C, const(0.0)), -(A - C) * (A - C)),
    "a square of exponentials": (maximum(exp(A) + exp(B), exp(A / 2.0 + B / 2.0) * 2.0), exp(A) + exp(B)),
    "equal where a square is 0": (where(lt(const(0.0), A * A + B * B - A * B * 2.0), A, B), A + 0.0),
    "equal at the border": (where(lt(A, B), B, A), maximum(B, A)),
    "equal by an equation": (where(lt(A, B), C, where(lt(B, A), C, B * C - A * C + C)), C * const(1.0)),
}


@pytest.mark.parametrize("name", IDENTITIES)
def test_identities_of_the_reals_are_proved(name):
    assert compare(*IDENTITIES[name], FINITE).both


NOT_IDENTITIES = {
    "no rescaling": (A * exp(B - maximum(B, C)) + exp(C - maximum(B, C)), A + exp(C - maximum(B, C))),
    "a maximum of products": (maximum(A * C, B * C), maximum(A, B) * C),
    "almost a square": (maximum(A * A + B * B - A * B * 3.0, const(0.0)), A * A + B * B - A * B * 3.0),
    "a square is not positive": (where(lt(const(0.0), A * A + B * B - A * B * 2.0), A, C), A + 0.0),
    "a square and more": (maximum(A * A + B * B - A * B * 2.0 + C, const(0.0)), A * A + B * B - A * B * 2.0 + C),
    "a root of a square": (sqrt(A * A), A + 0.0),
    "a logarithm of a product": (log(A * B), log(A) + log(B)),
    "less is not at most": (where(lt(A, B), const(1.0), const(0.0)), where(lt(B, A), const(0.0), const(1.0))),
}


@pytest.mark.parametrize("name", NOT_IDENTITIES)
def test_what_is_no_identity_is_not_proved(name):
    assert not compare(*NOT_IDENTITIES[name], FINITE).both


def test_definedness_has_a_direction():
    found = compare(A / B * B, A + 0.0, FINITE)
    assert found.forward and not found.backward
    found = compare(A - A, const(0.0), VariableFacts(lambda _: EVERY))
    assert found.forward and not found.backward


def test_a_square_is_seen_to_be_one_and_nothing_else_is():
    random = Random(0)
    atoms = [of_atom("var", name).over for name in "ab"] + [exponential(of_atom("var", "c")).over]

    def drawn(terms: int):
        p = {}
        for _ in range(terms):
            p = add(p, multiply(random.choice(atoms), random.choice([*atoms, ONE])), random.choice((-3, -1, 1, 2)))
        return p or ONE

    for _ in range(200):
        q, c = drawn(3), random.choice((-2, 3))
        p = multiply({(): Fraction(c)}, multiply(q, q))
        leading, root = square(p)
        assert (leading > 0) == (c > 0) and multiply({(): leading}, multiply(root, root)) == p
        for other in (add(p, drawn(1)), multiply(p, drawn(2))):
            found = square(other) if other else None
            assert found is None or multiply({(): found[0]}, multiply(found[1], found[1])) == other


def test_infeasible_signs_are_left_out():
    x, y = {((0, 1),): 1}, {((1, 1),): 1}
    difference = {((0, 1),): 1, ((1, 1),): -1}
    assert feasible([(x, 1), (y, 1), (difference, 0)])
    assert not feasible([(x, -1), (y, 1), (difference, 1)])
    assert not feasible([(x, 1), (y, 0), (difference, -1)])


def test_what_is_not_shown_names_the_case_where_it_stopped():
    x = var("x")
    found = compare(tanh(tanh(x)), tanh(const(1.0) - const(2.0) / (exp(x * 2.0) + 1.0)), VariableFacts(lambda _: EVERY))
    assert not found.both and found.why.endswith("in the case that x is real (0 signs decided)")

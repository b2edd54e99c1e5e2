"""Normal forms of logarithms, roots and sines against numbers, and substitution inside of them."""

from fractions import Fraction
from math import cos, exp, log, sin
from random import Random

import pytest

from onepass.proofs.algebra.functions import circular, content, log_of, log_of_number, product_of_logs, substituted
from onepass.proofs.algebra.polynomial import ONE, Quotient, data_of, equal, exponential, number, of_atom

X, Y = (of_atom("var", name) for name in "xy")
POINT = {"x": 0.7, "y": 2.3}


def value(q: Quotient) -> float:
    """The quotient at POINT, by the data of its atoms."""
    over, under = (sum(float(c) * product(m) for m, c in p.items()) for p in q)
    return over / under


def product(m) -> float:
    total = 1.0
    for place, power in m:
        total *= at(data_of(place)) ** float(power)
    return total


def at(data) -> float:
    match data[0]:
        case "var":
            return POINT[data[1]]
        case "exp":
            return exp(product(data[1]))
        case "log":
            return log(value(Quotient(dict(data[1]), ONE)))
    return {"sin": sin, "cos": cos}[data[0]](value(Quotient(dict(data[1]), dict(data[2]))))


def positive(p) -> int:
    return 1 if value(Quotient(p, ONE)) > 0 else -1


def random_quotient(random: Random) -> Quotient:
    total = number(random.choice((1, 2, 12, Fraction(3, 4))))
    for _ in range(random.choice((1, 2, 3))):
        other = random.choice((X, Y, X + Y, exponential(X), X * X + number(1), exponential(X - Y)))
        total = random.choice((total * other, total / other, total + other))
    return total


@pytest.mark.parametrize("seed", range(30))
def test_a_logarithm_and_its_exponential_have_the_value_of_the_argument(seed):
    q = random_quotient(Random(seed))
    found = log_of(q, positive)
    assert value(found) == pytest.approx(log(abs(value(q))))
    assert equal(exponential(found), q)
    half = exponential(found * number(Fraction(1, 2)))
    assert equal(half * half, q) and value(half) == pytest.approx(value(q) ** 0.5)


def test_logarithms_of_products_are_sums():
    whole = log_of(X * X * exponential(Y) * number(12), positive)
    parts = number(2) * log_of(X, positive) + Y + Quotient(log_of_number(Fraction(12)), ONE)
    assert equal(whole, parts)
    assert equal(Quotient(log_of_number(Fraction(8)), ONE), number(3) * Quotient(log_of_number(Fraction(2)), ONE))
    assert not log_of_number(Fraction(1))


def test_a_sign_that_is_not_known_gives_no_logarithm():
    assert log_of(X * Y, lambda p: None) is None
    assert log_of(exponential(X), lambda p: None) is not None


@pytest.mark.parametrize("seed", range(10))
def test_sines_of_sums_have_the_value_of_a_sine(seed):
    random = Random(seed)
    angle = number(0)
    for _ in range(3):
        angle = angle + random.choice((X, Y, number(Fraction(1, 2)), X * Y)) * number(random.choice((1, -2, 3)))
    cosine, sine = circular(angle)
    assert value(cosine) == pytest.approx(cos(value(angle))) and value(sine) == pytest.approx(sin(value(angle)))
    assert equal(cosine * cosine + sine * sine, number(1))


def test_linear_terms_in_logarithms_become_products():
    logs = log_of(X, positive) * number(Fraction(1, 2)) - log_of(Y, positive)
    assert equal(product_of_logs(logs.over), X / (Y * Y))
    assert product_of_logs((X + Y).over) is None
    assert product_of_logs((log_of(X, positive) * Y).over) is None
    assert product_of_logs((X + Quotient(log_of_number(Fraction(2)), ONE)).over) is None


def test_substitution_reaches_the_arguments_of_functions():
    (place,) = (m[0][0] for m in X.over)
    cosine, sine = circular(X)
    for q in (exponential(X * Y), log_of(X + Y, positive), cosine * sine, exponential(log_of(X, positive) * Y)):
        after = substituted(q, {place: Y * number(2)})
        old, POINT["x"] = POINT["x"], 2 * POINT["y"]
        try:
            assert value(after) == pytest.approx(value(q))
        finally:
            POINT["x"] = old
    assert equal(substituted(log_of(X, positive), {place: number(4)}), Quotient(log_of_number(Fraction(4)), ONE))


def test_a_content_is_the_largest_common_monomial():
    shared, rest = content((X * X * Y + X * number(3)).over)
    assert [power for _, power in shared] == [1] and equal(Quotient(rest, ONE), X * Y + number(3))

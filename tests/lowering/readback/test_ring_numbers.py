"""The laws of fields, of exp and of orders hold exactly; what is no law does not; far numbers absorb and vanish."""

from math import inf

import numpy as np
import pytest

from onepass.lowering.readback import ring_numbers as ring
from onepass.lowering.readback.ring_numbers import PRIMES, RingNumbers


def some(count: int, seed: int) -> RingNumbers:
    return ring.of_bits(ring.mixed(np.arange(count, dtype=np.uint64) + np.uint64(1000 * seed + 1)))


A, B, C = (some(200, seed) for seed in range(3))
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # ∞ - ∞
ONE = ring.of_integers(np.ones(200, int))


def same(one: RingNumbers, other: RingNumbers) -> bool:
    return bool(np.all(ring.equal(one, other)))


LAWS = {
    "exp of a sum": (ring.exponential(ring.add(A, B)), ring.multiply(ring.exponential(A), ring.exponential(B))),
    "exp of 0": (ring.exponential(ring.add(A, A, -1)), ONE),
    "distributivity": (ring.multiply(A, ring.add(B, C)), ring.add(ring.multiply(A, B), ring.multiply(A, C))),
    "quotient": (ring.multiply(ring.divide(A, B), B), A),
    "negative": (ring.add(A, ring.negative(A)), ring.add(B, B, -1)),
    "power": (ring.power(A, 3), ring.multiply(A, ring.multiply(A, A))),
    "maximum and minimum": (ring.add(ring.largest(A, B), ring.smallest(A, B)), ring.add(A, B)),
    "a function": (ring.arbitrary(7, ring.add(A, B)), ring.arbitrary(7, ring.add(B, A))),
    "magnitude": (ring.magnitude(A), ring.magnitude(ring.magnitude(A))),
}
NO_LAWS = {
    "exp is not linear": (ring.exponential(ring.add(A, B)), ring.add(ring.exponential(A), ring.exponential(B))),
    "exp of exps": (
        ring.exponential(ring.exponential(ring.exponential(A))), ring.exponential(ring.exponential(ring.exponential(B)))
    ),
    "functions differ": (ring.arbitrary(7, A), ring.arbitrary(8, A)),
    "their arguments count": (ring.arbitrary(7, A), ring.arbitrary(7, B)),
    "a factor near 1": (ring.multiplied(A, ring.Fraction(1.0000001)), A),
    "order matters": (ring.largest(A, B), A),
}  # fmt: skip


@pytest.mark.parametrize("name", LAWS)
def test_laws_hold_everywhere(name):
    assert same(*LAWS[name])


@pytest.mark.parametrize("name", NO_LAWS)
def test_what_is_no_law_is_seen(name):
    one, other = NO_LAWS[name]
    assert not np.all(ring.equal(one, other))
    if name != "order matters":
        assert not np.any(ring.equal(one, other))


def far(value: float) -> RingNumbers:
    return ring.of_parts(np.zeros((len(PRIMES), 200), np.int64), np.full(200, value))


def test_what_is_far_below_has_no_weight_and_what_is_added_to_it_is_lost():
    for value in (-inf, -1e9, -3e38):
        assert same(ring.exponential(ring.add(far(value), A)), far(0.0))
        assert same(ring.largest(ring.add(far(value), A), B), B)
    assert same(ring.add(far(-3e38), A), far(-3e38))
    assert not np.any(ring.equal(ring.add(far(-1e9), A), far(-1e9))), "which float32 does not absorb as a whole"
    assert same(ring.add(ring.add(far(-1e9), A), far(-1e9), -1), A)
    assert np.isnan(ring.add(far(-inf), far(-inf), -1).far).all()
    assert same(ring.divide(A, far(inf)), far(0.0)) and np.isnan(ring.divide(A, far(0.0)).far).all()


@pytest.mark.parametrize("value", [0.0, 1.0, -0.25, 0.1, 1e-12, 1 / 3, 12345.0])
def test_literals_are_the_rationals_that_they_are(value):
    twice = ring.literal(2 * value)
    assert same(ring.add(ring.literal(value), ring.literal(value)), twice)
    assert bool(ring.less(ring.literal(value), ring.literal(value + 1)))


def test_states_fold_in_any_order_and_an_absent_one_has_no_part():
    scale = ring.choose(np.arange(200) % 3 == 0, far(-inf), A)
    top, sum_ = ring.rescaled_total(scale, B, 0)
    turned = lambda x: RingNumbers(x.residues[:, ::-1], None if x.far is None else x.far[::-1])
    again = ring.rescaled_total(turned(scale), turned(B), 0)
    assert same(top, again[0]) and same(sum_, again[1])
    alone = ring.total(ring.multiply(ring.exponential(ring.add(scale, top, -1)), B), 0)
    assert same(sum_, alone)
    absent = ring.rescaled_total(far(-inf), B, 0)
    assert np.isneginf(absent[0].far).all() and same(absent[1], ring.of_integers(np.zeros(1, int)))


@pytest.mark.parametrize("hidden", [0, 3, 200])
def test_the_extreme_is_the_one_that_a_fold_finds(hidden):
    x = A if not hidden else ring.choose(np.arange(200) % hidden == 0, far(-inf), ring.add(A, far(-1e9)))
    for sign, operation in ((1, ring.largest), (-1, ring.smallest)):
        assert same(ring.extreme(x, 0, sign), ring.folded(operation, x, 0))

"""Wrong rules about indices and literals were proved, and right ones about them were not decided.

z3 took x % 0 for x, so a law could bring a division by zero into a program; a literal was never NaN for provers, though
rules match one. Masks of indices were no index arithmetic. What numpy cannot evaluate made a prover fail. Equal bits
were tested of numbers near 1 only.
"""

from math import inf, nan

import pytest
import torch

import onepass
from onepass import check, rule
from onepass.egraph import constant, has_dtype, in_range, nonzero
from onepass.egraph.ops import const, eq, exp, iota, le, load, lt, maximum, power, reduce, sum_over, where
from onepass.egraph.terms.ops import cast
from onepass.egraph.terms.term import Dim, Tensor
from onepass.proofs.provers.index_prover import equal

ZERO = const(0)


@rule
def division_by_zero_comes_in(x: "index", y: "index"):
    """0 · x + 0 · y = (x · y) % y. Wrong: y = 0"""
    return x * 0 + y * 0, (x * y) % y


@rule
def remainder_of_a_product(x: "index", y: "index", z: "index"):
    """x % y + 0 · z = x % y + (z · y · x) % (z · x). Wrong: z = 0"""
    return x % y + z * 0, x % y + (z * y * x) % (z * x)


@rule
def nothing_of_an_undefined_quotient(x: "index", y: "index"):
    """0 · (x + y) = 0 · (x // y). Wrong: y = 0"""
    return (x + y) * 0, (x // y) * 0


@rule(when=lambda c: constant(c))
def literal_is_itself(c: "constant", x, y):
    """where(c = c, x, y) = x. Wrong: a NaN"""
    return where(eq(c, c), x, y), x


@rule(when=lambda c: constant(c))
def not_less_than_a_literal(x, c: "constant"):
    """¬(x < c) = c ≤ x. Wrong: c is a NaN"""
    return ~lt(x, c), le(c, x)


@rule(when=lambda n: nonzero(n))
def power_of_integers(n: "index constant", m: "index"):
    """m · n^0 = m · n^-1 · n. Wrong: of integers there is no power to -1, but of 1 and -1"""
    return m * power(n, ZERO), m * power(n, const(-1)) * n


WRONG = [
    division_by_zero_comes_in, remainder_of_a_product, nothing_of_an_undefined_quotient, literal_is_itself,
    not_less_than_a_literal, power_of_integers,
]  # fmt: skip


@pytest.mark.parametrize("law", WRONG, ids=lambda law: law.name)
def test_a_wrong_rule_is_not_proved(law):
    found = check(law)
    assert found.status != "proved" and "a prover failed" not in found.reason


def test_a_load_of_floats_is_no_integer():
    x, n = Tensor("x", "float32", (8,)), iota(Dim("j", 8))
    quotient = load(x, n) // load(x, n)
    assert not equal(quotient // quotient, quotient // quotient + 0 * quotient, (), False)[0]


@rule(when=lambda y: nonzero(y))
def remainder_of_a_multiple(x: "index", y: "index constant"):
    """0 · x + 0 · y = (x · y) % y for y ≠ 0"""
    return x * 0 + y * 0, (x * y) % y


@rule
def less_by_one(a: "index", b: "index"):
    """a < b = (a ≤ b - 1)"""
    return lt(a, b), le(a, b - 1)


@rule
def block_before(a: "index", b: "index"):
    """a // 4 < b = (a < 4 · b)"""
    return lt(a // 4, b), lt(a, b * 4)


@rule(when=lambda n: in_range(n, 8))
def inside(n: "index", p: "predicate"):
    """p ∧ n // 8 = 0 is p for 0 ≤ n < 8"""
    return p & eq(n // 8, ZERO), p & const(True)


@rule
def coordinate_is_not_negative(n: "index"):
    """j + n < n is false"""
    return lt(iota(Dim("j")) + n, n), const(False)


@rule
def division_by_zero_goes_away(x: "index", y: "index"):
    """0 · (x // y) = 0 · (x + y) where the left side is defined"""
    return (x // y) * 0 + y // y, y // y + (x + y) * 0


@rule(exact="bitwise")
def three_out_of_a_maximum(x, y):
    """max(3 · x, 3 · y) = 3 · max(x, y), bit for bit: rounding and overflow keep the order"""
    return maximum(x * 3.0, y * 3.0), maximum(x, y) * 3.0


@rule(exact="bitwise")
def rounded_twice(x):
    """bfloat16(bfloat16(x)) = bfloat16(x), bit for bit"""
    return cast(cast(x, "bfloat16"), "bfloat16"), cast(x, "bfloat16")


RIGHT = [
    remainder_of_a_multiple, less_by_one, block_before, inside, coordinate_is_not_negative, division_by_zero_goes_away,
    rounded_twice, three_out_of_a_maximum,
]  # fmt: skip


@pytest.mark.parametrize("law", RIGHT, ids=lambda law: law.name)
def test_a_right_rule_is_proved(law):
    pytest.importorskip("z3")
    assert check(law).status == "proved"


@rule
def block_before_by_two(a: "index", b: "index"):
    """a // 4 < b = (a ≤ 4 · b). Wrong: a = 4 · b"""
    return lt(a // 4, b), le(a, b * 4)


@rule(exact="bitwise")
def rounded_to_another(x):
    """bfloat16(float16(x)) = bfloat16(x). Wrong: rounded twice"""
    return cast(cast(x, "float16"), "bfloat16"), cast(x, "bfloat16")


@rule(exact="bitwise")
def scaled_up_and_down(x):
    """x · 4 · 0.25 = x, bit for bit. Wrong: 20000 of float16, which becomes ∞"""
    return x * 4.0 * 0.25, x


@rule(exact="bitwise")
def two_out_of_a_sum(s: "j"):
    """Σ_j (s · 2) = (Σ_j s) · 2, bit for bit. Wrong: where s · 2 leaves the range, and the sum does not"""
    return sum_over("j", s * 2.0), sum_over("j", s) * 2.0


NEAR = [block_before_by_two, rounded_to_another, scaled_up_and_down, two_out_of_a_sum]


@pytest.mark.parametrize("law", NEAR, ids=lambda law: law.name)
def test_a_near_miss_is_refuted(law):
    assert check(law).status == "refuted"


@rule(exact="bitwise", when=lambda x: has_dtype(x, "bfloat16"))
def there_and_back(x):
    """bfloat16(float32(x)) = x for bfloat16, bit for bit"""
    return cast(cast(x, "float32"), "bfloat16"), x


def test_nothing_stands_for_a_dtype_that_a_rule_names():
    """It was refuted with float16 for float32, where 1e-30 is 0."""
    assert check(there_and_back).status == "unknown"


@rule
def negated(m: "monoid", s: "j"):
    """⊕_j -s = -⊕_j s. Wrong for products, and bools have no negation"""
    return reduce(m, "j", -s), -reduce(m, "j", s)


def test_what_cannot_be_evaluated_hides_no_counterexample():
    assert check(negated).status == "refuted"


@pytest.mark.parametrize("by", [inf, -inf, nan, 1e-320])
def test_scores_are_divided_by_any_literal(by):
    """A bound of values divided by an infinite literal, which it takes for 0."""

    def attention(q, k, v):
        return torch.softmax(q @ k.mT / by, -1) @ v

    inputs = [torch.randn(1, 2, 96, 16) for _ in range(3)]
    fast = torch.compile(attention, backend="onepass", options={"inner": "eager", "strict": True})
    torch.testing.assert_close(fast(*inputs), attention(*(x.double() for x in inputs)).float(), equal_nan=True)
    assert onepass.explain(attention, *inputs).fused


def test_exponents_are_still_reals():
    @rule(when=lambda c: constant(c))
    def product_of_exponentials(x, c: "constant"):
        """exp(x) · exp(c) = exp(x + c)"""
        return exp(x) * exp(c), exp(x + c)

    assert check(product_of_exponentials).status == "proved"

"""Division by products is exact for every item number and size that a launch may have."""

from hypothesis import example, given
from hypothesis import strategies as st

from onepass.lowering.codegen.fast_division import BITS, division


def quotient(number: int, divisor: int) -> int:
    found = division(divisor)
    assert 0 < found["multiplier"] < 2**31 and found["shift"] < 63
    return number * found["multiplier"] >> found["shift"]


@given(st.integers(0, 2**BITS - 1), st.integers(1, 2**31 - 1))
@example(2**BITS - 1, 1)
@example(2**BITS - 1, 2**BITS - 1)
@example(2**BITS - 1, 2**29 + 1)
@example(2**BITS - 1, 2**31 - 1)
def test_it_is_exact(number, divisor):
    for near in {number, number // divisor * divisor, max(0, number // divisor * divisor - 1)}:
        assert quotient(near, divisor) == near // divisor
        assert near * division(divisor)["multiplier"] < 2**63


def test_a_size_of_nothing_divides_nothing_wrong():
    assert quotient(0, 0) == 0

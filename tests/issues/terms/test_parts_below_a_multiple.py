"""(32 · j + i) // 512 stayed as it was, for 0 <= i < 32, where it is j // 16: a cache read by an embedding had an index
by keys, heads and widths at once.
"""

import itertools

import pytest

from onepass.egraph.terms.evaluate import evaluate
from onepass.egraph.terms.index_simplify import floordiv, mod
from onepass.egraph.terms.ops import const, iota, make
from onepass.egraph.terms.printing import show
from onepass.egraph.terms.term import Dim
from onepass.egraph.terms.traversal import substitute

SIZES = {Dim("i", 4): 4, Dim("j", 6): 6, Dim("k", 3): 3}
i, j, k = map(iota, SIZES)


def test_what_a_division_never_sees_is_left_out():
    d, h, n = iota(Dim("d", 16)), iota(Dim("h", 2)), iota(Dim("n", 80))
    flat = d + h * 16 + n * 32
    assert show(floordiv(flat, const(512))) == "n // 16"
    assert show(mod(flat, const(512))) == "d + h · 16 + n % 16 · 32"
    assert show(floordiv(mod(flat, const(512)), const(32))) == "n % 16"


@pytest.mark.sampled(1)
@pytest.mark.parametrize("divisor", [2, 6, 8, 12, 24, 32, 96])
@pytest.mark.parametrize("factors", [(1, 4, 24), (1, 8, -8), (2, 12, 24), (3, 4, 48), (-1, 4, 32), (4, 12, 36)])
def test_both_are_what_they_were(factors, divisor):
    for constant in (-37, -4, 0, 1, 7, 8):
        index = i * factors[0] + j * factors[1] + k * factors[2] + constant
        found = {"floordiv": floordiv(index, const(divisor)), "mod": mod(index, const(divisor))}
        for places in itertools.product(*map(range, SIZES.values())):
            at = {iota(dim): const(place) for dim, place in zip(SIZES, places, strict=True)}
            for name, simple in found.items():
                whole = substitute(make(name, (index, const(divisor))), at)
                assert int(evaluate(substitute(simple, at), {})) == int(evaluate(whole, {}))

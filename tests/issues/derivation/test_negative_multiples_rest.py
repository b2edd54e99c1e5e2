"""A negative multiple was written (i · 2) · -1, which constants_meet turned back into i · -2, without end."""

import numpy as np
import pytest

from onepass import rules
from onepass.egraph import Dim
from onepass.egraph.derivation.normalize import normalise
from onepass.egraph.terms.evaluate import evaluate
from onepass.egraph.terms.ops import const, iota, le

I, J = Dim("i", 5), Dim("j", 4)
CASES = [iota(I) * -2, -(iota(I) * 3) - 1, iota(I) * -2 - iota(J) * 3]


@pytest.mark.parametrize("x", CASES, ids=str)
def test_its_normal_form_is_one_product(x):
    normal = normalise(x, rules.NORMAL)
    assert normalise(normal, rules.NORMAL) is normal
    assert "-1" not in str(normal)


@pytest.mark.parametrize("x", CASES, ids=str)
def test_the_value_is_kept(x):
    for term in (x, le(x, const(-4))):
        dims = sorted(term.dims)
        np.testing.assert_array_equal(evaluate(normalise(term, rules.NORMAL), {}, dims), evaluate(term, {}, dims))

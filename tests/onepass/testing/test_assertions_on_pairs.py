"""assert_equivalent decides sixty pairs of functions rightly, with three seeds. Each pair is a test of its own."""

import pytest

from onepass.testing import Refuted, assert_equivalent
from tests.support.equivalence_pairs import EQUAL, UNEQUAL


@pytest.mark.sampled(2)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("pair", EQUAL, ids=str)
def test_equal_functions_are_not_refuted(pair, seed):
    examples = 25 if seed else 200  # the sweep before the draws is the same for each seed
    assert_equivalent(pair.f, pair.g, pair.inputs, examples, seed=seed, **pair.options)


@pytest.mark.sampled(7)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("pair", UNEQUAL, ids=str)
@pytest.mark.filterwarnings("ignore:std\\(\\)")
def test_functions_that_differ_at_hostile_values_are_refuted(pair, seed):
    with pytest.raises(Refuted):
        assert_equivalent(pair.f, pair.g, pair.inputs, seed=seed, **pair.options)


def test_there_are_thirty_of_each():
    assert len(EQUAL) == len(UNEQUAL) == 30
    assert len({pair.name for pair in [*EQUAL, *UNEQUAL]}) == 60

"""64 true laws and 64 false ones that no prover was written for: at least 60 true ones are proved, false ones never."""

from collections import Counter
from time import thread_time

import pytest

from onepass.proofs.check import check, prove
from tests.proofs.false_laws import FALSE_LAWS
from tests.proofs.true_laws import TRUE_LAWS

NOT_PROVED = ()  # names of true laws that the provers leave unknown; at most 4


def test_there_are_as_many_false_laws_as_true_ones():
    assert len(TRUE_LAWS) == len(FALSE_LAWS) == 64
    assert all("Wrong: " in law.law for law in FALSE_LAWS)


@pytest.mark.sampled(24)
@pytest.mark.parametrize("law", TRUE_LAWS, ids=lambda law: law.name)
def test_a_true_law_is_proved(law):
    found = check(law, budget=8.0)
    assert found.status == ("unknown" if law.name in NOT_PROVED else "proved"), str(found)


@pytest.mark.sampled(30)
@pytest.mark.parametrize("law", FALSE_LAWS, ids=lambda law: law.name)
def test_a_false_law_is_not_proved_by_provers_alone(law):
    """Without the search for counterexamples, which refutes it before."""
    assert not prove(law, thread_time() + 4.0).holds


@pytest.mark.slow
def test_false_laws_are_refuted_with_numbers():
    found = Counter(check(law).status for law in FALSE_LAWS)
    assert found["refuted"] >= 62 and not found["proved"]

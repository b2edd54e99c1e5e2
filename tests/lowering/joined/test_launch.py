"""Which plan runs: the joined one, in which order it adds, and where the plan runs as it is."""

import pytest

from onepass.lowering.joined.launch import launcher
from onepass.lowering.launch.triton_compat import gluon_missing
from tests.support.gluon_ahead_of_time import backward_plan_of

pytestmark = pytest.mark.skipif(gluon_missing() is not None, reason="needs Gluon")


@pytest.fixture(scope="module")
def plan():
    return backward_plan_of("causal", 64, batch=1, heads=2)


def test_a_joined_plan_adds_in_no_fixed_order_and_says_so(plan):
    found = launcher(plan)
    assert found.active is not found and not found.active.plan.deterministic
    (said,) = found.said
    assert "in no fixed order" in said


def test_a_joined_plan_adds_in_one_order_where_a_deterministic_result_is_asked_for(plan):
    found = launcher(plan, deterministic=True)
    assert found.active is not found and found.deterministic
    (said,) = found.said
    assert "in one order" in said and "in_order" in said
    assert not launcher(plan).deterministic and plan.deterministic


def test_kernels_that_draw_numbers_stay_apart():
    plan = backward_plan_of("dropout", 64, batch=1, heads=2)
    found = launcher(plan)
    assert "draws random numbers" in found.joined and found.active.plan is plan

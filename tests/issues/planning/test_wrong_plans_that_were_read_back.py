"""Plans that compute something else, and were read back as what was asked for: none is now.

A value that was doubled was seen where it differed, and then found equal at other indices. A product in place of a sum
over equal ids was found equal as no two ids that were looked at are equal, and a range as exact as no two numbers were
unlike. A store that adds over no dim does so to memory that nobody sets to zero.
"""

import pytest
import torch

from onepass.lowering.readback.check_plan import check
from onepass.lowering.readback.plan_meaning import NotReadBack
from tests.support.plan_mutants import mutants
from tests.support.read_plans import plans_of
from tests.variants import every

WRONG = {
    "hidden rows, differential": ("value doubled", "stored twice as large"),
    "documents from cumulative lengths": ("sum as prod",),
    "invariant points": ("combined otherwise",),
    "order given": ("exact flag",),
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", WRONG)
def test_none_is_read_back(name):
    variant = next(v for v in every() if v.name == name)
    torch.manual_seed(0)
    changed = 0
    for asked, plan in plans_of(variant.function, variant.inputs()):
        check(plan, asked)
        for mutant in (mutant for what, mutant in mutants(plan) if what in WRONG[name]):
            changed += 1
            with pytest.raises(NotReadBack):
                check(mutant, asked)
    assert changed

"""Each variant's derived backward against differences of its own forward, in float64: torch's gradcheck.

Unlike autograd of the original function, it would find a forward and a backward that are wrong alike. Inputs are those
of the records, so kernels have loops; the Jacobian is compared along random directions.
"""

import pytest
import torch
from torch.utils._pytree import tree_map

import onepass
from tests.end_to_end.test_training import RECOMPUTED
from tests.variants import every

pytestmark = pytest.mark.usefixtures("fresh")
OF_FLOAT32 = ("place of the largest score beside the output",)  # in float64 it is refused
DERIVED = [v.name for v in every() if not v.refused and v.name not in (*RECOMPUTED, *OF_FLOAT32)]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", DERIVED)
def test_a_variants_gradients_are_the_slopes_of_its_results(name):
    variant = next(v for v in every() if v.name == name)
    inputs = [x.double().requires_grad_() if x.is_floating_point() else x for x in variant.inputs()]
    options = {"inner": "eager", "strict": True, "libraries": False}
    compiled = torch.compile(variant.function, backend="onepass", options=options)
    numbers = lambda *given: tree_map(torch.nan_to_num, compiled(*given))  # a row without keys has none
    assert torch.autograd.gradcheck(numbers, inputs, fast_mode=True)
    backward = [region.backward for region in onepass.reports()[-1].regions]
    assert backward and all(line.startswith("derived") for line in backward)

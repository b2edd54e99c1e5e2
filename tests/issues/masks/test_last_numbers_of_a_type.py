"""a[i] < b[j] of two tensors of int64 was tested as a[i] + 1 ≤ b[j], which overflows at the last number of the type.

The mask then kept pairs that eager drops. The comparison stays strict where both sides are read from memory.
"""

import pytest
import torch

import onepass
from onepass.api.backend import onepass_backend
from onepass.egraph.terms.affine import compare
from onepass.egraph.terms.index_simplify import negate
from onepass.egraph.terms.ops import const, iota, load
from onepass.egraph.terms.printing import show
from onepass.egraph.terms.term import Dim, Tensor

pytestmark = pytest.mark.usefixtures("fresh")
LEAST, LARGEST = torch.iinfo(torch.int64).min, torch.iinfo(torch.int64).max
NUMBERS = torch.tensor([LARGEST, LARGEST - 1, 0, 5, LEAST, LEAST + 1])
MASKS = {
    "<": lambda a, b: a[:, None, :, None] < b[:, None, None],
    ">": lambda a, b: a[:, None, :, None] > b[:, None, None],
    "not <=": lambda a, b: ~(a[:, None, :, None] <= b[:, None, None]),
    "not <": lambda a, b: ~(a[:, None, :, None] < b[:, None, None]),
    "of columns": lambda a, b: a[:, None, None] < b[:, None, None],
    "!=": lambda a, b: a[:, None, :, None] != b[:, None, None],
    "causal": lambda a, b: (a[:, None, :, None] < b[:, None, None]) & torch.ones(40, 40, dtype=torch.bool).tril(),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("executor", ["tiled", "triton"])
@pytest.mark.parametrize("mask", MASKS)
def test_a_mask_of_two_tensors_is_right(mask, executor):
    def attend(q, k, v, a, b):
        return (q @ k.mT / 4).masked_fill(~MASKS[mask](a, b), -1e9).softmax(-1) @ v

    q, k, v = torch.randn(3, 2, 2, 40, 16)
    a, b = (NUMBERS[torch.randint(0, len(NUMBERS), (2, 40))] for _ in range(2))
    options = {"inner": "eager", "strict": True, "executor": executor}
    found = torch.compile(attend, backend=onepass_backend, options=options)(q, k, v, a, b)
    torch.testing.assert_close(found.double(), attend(q.double(), k.double(), v.double(), a, b), atol=1e-5, rtol=1e-5)
    assert onepass.reports()[-1].regions[0].ran == executor


def test_the_normal_form_of_a_comparison():
    i, j = Dim("i", 40), Dim("j", 40)
    a, b = (load(Tensor(name, "int64", (40,)), iota(dim)) for name, dim in (("a", i), ("b", j)))
    assert show(compare("lt", a, b)) == "a[i] < b[j]" and show(compare("le", a, b)) == "a[i] ≤ b[j]"
    assert negate(compare("lt", a, b)) is compare("le", b, a) and negate(compare("le", a, b)) is compare("lt", b, a)
    assert compare("lt", a, b) is compare("lt", a - b, const(0)) is compare("le", a + const(1), b)
    assert show(compare("lt", iota(j), b)) == "j + 1 ≤ b[j]" and show(compare("lt", a, const(5))) == "a[i] ≤ 4"

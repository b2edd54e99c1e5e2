"""Values near float32's end gave inf where eager is finite: a sum of weights times values is divided last.

The law that moves the division behind the sum names this assumption. Values of float16 cannot overflow a float32 sum.
"""

import pytest
import torch

import onepass

pytestmark = pytest.mark.usefixtures("fresh")
ASSUMED = "nothing overflows before it is divided"


def attention(q, k, v):
    return torch.softmax(q @ k.mT / 4, -1) @ v


def inputs(dtype, largest: float):
    q, k = torch.randn(1, 2, 20, 16), torch.randn(1, 2, 24, 16)
    return [q.to(dtype), k.to(dtype), (torch.randn(1, 2, 24, 8).sign() * largest).to(dtype)]


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("dtype", "assumes"), [(torch.float32, True), (torch.bfloat16, True), (torch.float64, True), (torch.float16, False)]
)
def test_reports_name_what_is_assumed_of_large_values(dtype, assumes):
    report = onepass.explain(attention, *inputs(dtype, 1.0))
    assert (ASSUMED in report.regions[0].assumptions) == assumes


def test_no_division_no_assumption():
    report = onepass.explain(lambda q, k, v: torch.sigmoid(q @ k.mT) @ v, *inputs(torch.float32, 1.0))
    assert report.regions and ASSUMED not in report.regions[0].assumptions


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_right_up_to_a_value_that_all_keys_together_do_not_overflow(dtype):
    largest = torch.finfo(dtype).max / (1 if dtype == torch.float16 else 24)
    q, k, v = inputs(dtype, largest)
    fast = torch.compile(attention, backend="onepass", options={"inner": "eager", "executor": "tiled", "strict": True})
    got, expected = fast(q, k, v), attention(q.double(), k.double(), v.double())
    assert got.isfinite().all()
    assert (got.double() - expected).abs().max() <= 0.02 * largest

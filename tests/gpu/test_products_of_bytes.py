"""Products of e4m3 on a CUDA device, against float64: scales, masks, groups, lengths, and numbers that are none."""

import math

import pytest
import torch

import onepass

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
BYTES = torch.float8_e4m3fn
OPTIONS = {"inner": "eager", "libraries": False, "strict": True}
ROUNDED = 0.04  # of the mean size: weights of three bits of mantissa, of which many are added
EXACT = 0.006  # bfloat16's rounding of results


def masks(name, rows, columns):
    i, j = torch.arange(rows, device="cuda")[:, None], torch.arange(columns, device="cuda")
    found = {"causal": j <= i, "window": (j <= i) & (i - j < 200), "hidden": (j <= i) & (i >= 100)}
    return found.get(name)


def attention(mask):
    def function(q, k, v, of_q, of_k, of_v):
        groups = q.shape[1] // k.shape[1]
        k, v = (x.repeat_interleave(groups, 1) for x in (k, v))
        score = (q.float() * of_q) @ (k.float() * of_k).mT / math.sqrt(q.shape[-1])
        keep = masks(mask, q.shape[-2], k.shape[-2])
        weights = torch.softmax(score if keep is None else torch.where(keep, score, -math.inf), -1)
        return (weights @ (v.float() * of_v)).to(torch.bfloat16)

    return function


def inputs(rows=640, columns=768, width=128, heads=4, groups=1, kinds=(BYTES, BYTES, BYTES)):
    torch.manual_seed(0)
    shapes = ((2, heads, rows, width), *2 * [(2, heads // groups, columns, width)])
    tensors = [torch.randn(shape, device="cuda").to(kind) for shape, kind in zip(shapes, kinds, strict=True)]
    return [*tensors, *(torch.rand(2, heads, 1, 1, device="cuda") + 0.5 for _ in range(3))]


def agrees(function, given, most, **options):
    torch._dynamo.reset()
    compiled = onepass.compile(function, **OPTIONS, **options)
    with torch.no_grad():
        found = compiled(*given)
        exact = function_in_double(function, given)
    error, size = found.double() - exact, exact.nan_to_num().square().mean().sqrt()
    assert torch.equal(found.isnan(), exact.isnan())
    assert error.nan_to_num().square().mean().sqrt() <= most * size, (error.nan_to_num().abs().max(), size)


def function_in_double(function, given):
    """The function with float64 in place of float32, of numbers that bytes hold exactly."""
    before = torch.Tensor.float
    torch.Tensor.float = torch.Tensor.double
    try:
        return function(*(x if x.dtype == BYTES else x.double() for x in given)).double()
    finally:
        torch.Tensor.float = before


@pytest.mark.parametrize("weights", ["e4m3", "half"])
@pytest.mark.parametrize("mask", ["full", "causal", "window", "hidden"])
@pytest.mark.parametrize("width", [32, 64, 96, 128, 256])
def test_widths_and_masks(width, mask, weights):
    most = ROUNDED if weights == "e4m3" else EXACT
    agrees(attention(mask), inputs(width=width), most, weights=weights)


@pytest.mark.parametrize("columns", [16, 80, 1000, 1008, 1040, 4096])
@pytest.mark.parametrize("rows", [520, 640, 1025])
def test_lengths(rows, columns):
    agrees(attention("full"), inputs(rows, columns), ROUNDED, weights="e4m3")


@pytest.mark.parametrize("mask", ["full", "causal"])
def test_lengths_that_are_symbols(mask):
    """640 and 1024 are stored in bytes, 1000 is no multiple of 16, and of 80 there are too few rows."""
    torch._dynamo.reset()
    function = attention(mask)
    compiled, seen = onepass.compile(function, dynamic=True, weights="e4m3", **OPTIONS), []
    for length in (640, 1024, 1000, 80, 640):
        given = inputs(length, length)
        with torch.no_grad():
            found, exact = compiled(*given), function_in_double(function, given)
        assert (found.double() - exact).square().mean().sqrt() <= ROUNDED * exact.square().mean().sqrt(), length
        seen.append(onepass.reports()[-1].regions[0].ran)
    assert seen[0] == seen[1] == seen[4] == "gluon and triton"


@pytest.mark.parametrize("groups", [2, 4])
def test_groups(groups):
    agrees(attention("causal"), inputs(groups=groups), ROUNDED, weights="e4m3")


@pytest.mark.parametrize("kinds", [(torch.bfloat16, BYTES, BYTES), (BYTES, BYTES, torch.bfloat16)], ids=str)
def test_halves_beside_bytes(kinds):
    agrees(attention("causal"), inputs(kinds=kinds), EXACT)


@pytest.mark.parametrize("scale", [0.0, -1.0, 1e-20, 30.0, math.nan])
@pytest.mark.parametrize("mask", ["full", "causal"])
def test_scales_of_any_sign(mask, scale):
    given = inputs()
    given[3] = given[3] * scale
    agrees(attention(mask), given, ROUNDED, weights="e4m3")


@pytest.mark.parametrize("place", [1, 2])
def test_bytes_that_are_no_number(place):
    """In a value, one column of a head is NaN, in a key the whole head."""
    given = inputs()
    given[place].view(torch.uint8)[0, 1, 5, 7] = 0x7F
    agrees(attention("full"), given, ROUNDED, weights="e4m3")


@pytest.mark.parametrize("most", [448.0, 2.0**-9])
def test_the_largest_and_the_least_numbers(most):
    given = inputs()
    given[0], given[2] = ((x.float().sign() * most).to(BYTES) for x in (given[0], given[2]))
    agrees(attention("causal"), given, ROUNDED, weights="e4m3")

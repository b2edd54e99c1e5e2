"""Products of int8 on a CUDA device, against float64: scales, masks, widths, exact scores; torch's scaled products."""

import math

import pytest
import torch

import onepass

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
OPTIONS = {"inner": "eager", "libraries": False, "strict": True}
EXACT = 0.006  # bfloat16's rounding of results and weights
NARROW = 0.01  # and that of scores, which a scaled product rounds to bfloat16


def keep(mask, rows, columns):
    i, j = torch.arange(rows, device="cuda")[:, None], torch.arange(columns, device="cuda")
    return {"causal": j <= i, "window": (j <= i) & (i - j < 200)}.get(mask)


def attention(mask, block=0):
    def function(q, k, v, of_q, of_k):
        k, v, of_k = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v, of_k))
        if block:
            of_q, of_k = (x.repeat_interleave(block, -2) for x in (of_q, of_k))
        score = (q.float() @ k.float().mT) * of_q * of_k.mT / math.sqrt(q.shape[-1])
        kept = keep(mask, *score.shape[-2:])
        score = score if kept is None else torch.where(kept, score, -math.inf)
        return (score.softmax(-1) @ v.float()).to(v.dtype)

    return function


def inputs(rows=640, columns=768, width=128, heads=4, groups=1, scales=("token", "token"), half=torch.bfloat16):
    torch.manual_seed(0)
    sizes = {"token": (rows, columns), "head": (1, 1), "block": (rows // 128, columns // 64)}
    q = torch.randint(-128, 128, (2, heads, rows, width), device="cuda").to(torch.int8)
    k = torch.randint(-128, 128, (2, heads // groups, columns, width), device="cuda").to(torch.int8)
    v = torch.randn(2, heads // groups, columns, width, device="cuda").to(half)
    lengths = [sizes[one][n] for n, one in enumerate(scales)]
    made = [torch.rand(2, x.shape[1], n, 1, device="cuda") * 0.01 + 0.01 for x, n in zip((q, k), lengths, strict=True)]
    return [q, k, v, *made]


def agrees(function, given, most=EXACT, **options):
    torch._dynamo.reset()
    with torch.no_grad():
        found = onepass.compile(function, **OPTIONS, **options)(*given)
        before = torch.Tensor.float
        torch.Tensor.float = torch.Tensor.double
        try:
            exact = function(*(x.double() for x in given))
        finally:
            torch.Tensor.float = before
    error, size = found.double() - exact, exact.square().mean().sqrt()
    assert error.square().mean().sqrt() <= most * size, (error.abs().max(), size)


@pytest.mark.parametrize("executor", ["gluon", "triton"])
@pytest.mark.parametrize("mask", ["full", "causal", "window"])
@pytest.mark.parametrize("width", [32, 64, 96, 128, 256])
def test_widths_and_masks(width, mask, executor):
    agrees(attention(mask), inputs(width=width), executor=executor)


@pytest.mark.parametrize("scales", [("head", "head"), ("token", "head"), ("head", "token")], ids=str)
@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16], ids=str)
def test_scales(half, scales):
    agrees(attention("causal"), inputs(scales=scales, half=half))


def test_scales_of_blocks():
    """Of 128 queries, and of 128 keys."""
    given = inputs(scales=("block", "block"))
    given[4] = given[4][:, :, ::2].contiguous()
    agrees(attention("causal", block=128), given)


@pytest.mark.parametrize("rows, columns", [(520, 16), (1025, 80), (640, 1000), (1, 4096), (17, 512)])
def test_lengths(rows, columns):
    agrees(attention("full"), inputs(rows, columns))


def test_groups():
    agrees(attention("causal"), inputs(groups=4))


@pytest.mark.parametrize("width", [64, 256, 512])
@pytest.mark.parametrize("size", [-128, 127])
def test_scores_are_exact(width, size):
    """To the bit those of float64, also the largest sums."""
    torch._dynamo.reset()
    x, w = (torch.randint(-128, 128, (n, width), device="cuda").to(torch.int8) for n in (2048, 4096))
    x[3], w[7] = size, size
    found = onepass.compile(lambda x, w: (x.float() @ w.float().mT).amax(-1), **OPTIONS)(x, w)
    assert torch.equal(found.double(), (x.double() @ w.double().mT).amax(-1))


def test_a_cache_of_int8_beside_halves():
    """A prefill: keys and values are stored in the queries' type first."""
    q, k, _, _, of_k = inputs()
    v = torch.randint(-128, 128, k.shape, device="cuda").to(torch.int8)

    def function(q, k, v, of_k, of_v):
        score = (q.float() @ k.float().mT) * of_k.mT / 100
        return (score.softmax(-1) @ (v.float() * of_v)).to(torch.bfloat16)

    agrees(function, [q.float().mul(0.01).to(torch.bfloat16), k, v, of_k, of_k])


ONE_NUMBER, OF_ROWS = ((), ()), ((512, 1), (1, 768))
# With scales of rows, torch's product has results in half precision alone.
SCALED = [(torch.float32, ONE_NUMBER), (torch.bfloat16, ONE_NUMBER), (torch.bfloat16, OF_ROWS)]


@pytest.mark.parametrize(("kind", "shapes"), SCALED, ids=str)
def test_a_scaled_product(kind, shapes):
    torch.manual_seed(0)
    q, k, v = (torch.randn(n, 128, device="cuda") for n in (512, 768, 768))
    a, b = (torch.rand(shape, device="cuda") + 0.2 for shape in shapes)
    q, k, v = q.to(torch.float8_e4m3fn), k.to(torch.float8_e4m3fn), v.to(torch.bfloat16)

    def function(q, k, v, a, b):
        return (torch._scaled_mm(q, k.t(), a, b, out_dtype=kind).float() / 11).softmax(-1).to(v.dtype) @ v

    torch._dynamo.reset()
    found = onepass.compile(function, **OPTIONS)(q, k, v, a, b)
    exact = ((q.double() @ k.double().mT) * a.double() * b.double() / 11).softmax(-1) @ v.double()
    assert (found.double() - exact).square().mean().sqrt() <= NARROW * exact.square().mean().sqrt()


def test_an_integer_product():
    torch._dynamo.reset()
    q, k, v, a, b = (x[0, 0] for x in inputs())
    function = lambda q, k, v, a, b: (torch._int_mm(q, k.t()).float() * a * b.t() / 11).softmax(-1).to(v.dtype) @ v
    found = onepass.compile(function, **OPTIONS)(q, k, v, a, b)
    exact = ((q.double() @ k.double().mT) * a.double() * b.double().mT / 11).softmax(-1) @ v.double()
    assert (found.double() - exact).square().mean().sqrt() <= EXACT * exact.square().mean().sqrt()

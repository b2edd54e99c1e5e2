"""Products of bytes of ATen as their mathematics: scaled ones of eight-bit floats, and integer ones; what stays out."""

import os

import pytest
import torch

import onepass
from onepass.compiler.optimize import optimize_all
from onepass.errors import Refusal
from onepass.graph.trace import program_of
from onepass.lowering.executors import TRITON
from onepass.lowering.hopper.kernel_form import bind
from onepass.translate.contractions import MOST_WHOLE
from onepass.translate.translate import translate

interpreted = pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="needs Triton's interpreter")
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
OPTIONS = {"inner": "eager", "require": "all", "strict": True}
EXECUTORS = ["tiled", pytest.param("triton", marks=interpreted)]


def scores(q, k, of_q, of_k, *bias, kind=torch.float32, **options):
    return torch._scaled_mm(q, k.t(), of_q, of_k, *bias, out_dtype=kind, **options)


def attention(q, k, v, *more):
    return (scores(q, k, *more) / 8).softmax(-1).to(v.dtype) @ v


def in_halves(q, k, v, *more):
    return scores(q, k, *more, kind=torch.bfloat16, use_fast_accum=True).float().softmax(-1).to(v.dtype) @ v


def by_name(q, k, v, of_q, of_k, bias):
    score = torch._scaled_mm(q, k.t(), scale_a=of_q, scale_b=of_k, bias=bias, out_dtype=torch.bfloat16)
    return score.float().softmax(-1).to(v.dtype) @ v


def of_heads(q, k, v, *more):
    """A loop over heads, of which each is a region."""
    return torch.stack([attention(*one, *more) for one in zip(q, k, v, strict=True)])


def operands(kinds=(E4M3, E4M3), rows=48, columns=80, heads=()):
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(*heads, n, 64, generator=generator) for n in (rows, columns, columns))
    return [q.to(kinds[0]), k.to(kinds[1]), v.to(torch.bfloat16)]


def scales(*shapes):
    generator = torch.Generator().manual_seed(1)
    return [torch.rand(shape, generator=generator) + 0.2 for shape in shapes]


SHAPES = {"tensor": ((), ()), "one": ((1,), (1,)), "matrix": ((1, 1), (1, 1)), "rows": ((48, 1), (1, 80))}


def exact(given, divisor=1.0, bias=0.0):
    q, k, v, of_q, of_k = (x.double() for x in given[:5])
    return ((q @ k.mT * of_q * of_k + bias) / divisor).softmax(-1) @ v


def is_near(found, right):
    assert (found.double() - right).abs().max() <= 0.02 * right.abs().max(), (found.double() - right).abs().max()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("kinds", [(E4M3, E4M3), (E5M2, E4M3), (E4M3, E5M2)], ids=str)
@pytest.mark.parametrize("shape", SHAPES)
def test_scores_of_a_scaled_product(shape, kinds, executor):
    torch._dynamo.reset()
    given = [*operands(kinds), *scales(*SHAPES[shape])]
    is_near(onepass.compile(attention, executor=executor, **OPTIONS)(*given), exact(given, 8.0))
    is_near(onepass.compile(in_halves, executor=executor, **OPTIONS)(*given), exact(given))


def test_a_bias_is_added_behind_the_scales():
    torch._dynamo.reset()
    bias = torch.randn(80).to(torch.bfloat16)
    given = [*operands(), *scales((), ()), bias]
    is_near(onepass.compile(by_name, executor="tiled", **OPTIONS)(*given), exact(given, bias=bias.double()))


def test_a_loop_over_heads_is_a_region_for_each():
    torch._dynamo.reset()
    given = [*operands(heads=(3,)), *scales((), ())]
    is_near(onepass.compile(of_heads, executor="tiled", **OPTIONS)(*given), exact(given, 8.0))
    assert len(onepass.reports()[-1].regions) == 3


def planned(function, *given):
    return optimize_all(translate(program_of(function, *given)).results).plan


def test_factors_are_read_as_they_are_stored():
    """So that Hopper multiplies bytes."""
    given = [*operands(rows=1024, columns=1024), *scales((1024, 1), (1, 1024))]
    found = bind(planned(in_halves, *given).kernels[-1])
    assert not isinstance(found, str) and found.has_narrow_scores


def test_scales_of_blocks_are_refused():
    """As newer releases of torch have them: for 128 columns each."""
    q, k = (torch.randn(n, 256).to(E4M3) for n in (48, 80))
    of_q, of_k = torch.rand(2, 48).t(), torch.rand(80, 2).t()
    with pytest.raises(Refusal, match="supported with scales in float32, one for each tensor"):
        translate(program_of(lambda q, k, *more: scores(q, k, *more).softmax(-1) @ k.float(), q, k, of_q, of_k))


# Integer products


def with_integers(q, k, v, of_q, of_k):
    score = torch._int_mm(q, k.t()).float() * of_q * of_k.t() / 8
    return score.softmax(-1).to(v.dtype) @ v


def of_bytes(width=64, rows=48, columns=80):
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randint(-128, 128, (n, width), generator=generator).to(torch.int8) for n in (rows, columns))
    v = torch.randn(columns, 64, generator=generator).to(torch.bfloat16)
    return [q, k, v, *(0.01 * x for x in scales((rows, 1), (columns, 1)))]


@pytest.mark.parametrize("executor", EXECUTORS)
def test_scores_of_an_integer_product(executor):
    torch._dynamo.reset()
    given = of_bytes()
    right = exact([*given[:4], given[4].t()], 8.0)
    is_near(onepass.compile(with_integers, executor=executor, **OPTIONS)(*given), right)


def test_no_sum_is_converted_twice():
    (kernel,) = planned(with_integers, *of_bytes()).kernels
    text = TRITON.source(kernel, planned(with_integers, *of_bytes()))
    assert "sum_of_bytes(" in text and "int64)" not in text.split("sum_of_bytes(tl.dot")[1].split("\n")[0]


@pytest.mark.parametrize("width", [MOST_WHOLE, MOST_WHOLE + 8])
def test_longer_sums_are_refused(width):
    """Beyond, a sum may be no number of float32."""
    program = program_of(with_integers, *of_bytes(width))
    if width <= MOST_WHOLE:
        translate(program)
        return
    with pytest.raises(Refusal, match=f"at most {MOST_WHOLE} products"):
        translate(program)


# What stays out


class Quantised(torch.nn.Module):
    """Two layers with weights in bytes, and inputs rounded by row, as a library makes them."""

    def __init__(self):
        super().__init__()
        self.register_buffer("one", torch.randn(128, 64).to(E4M3))
        self.register_buffer("other", torch.randn(64, 128).to(E4M3))

    def forward(self, x):
        for weight in (self.one, self.other):
            scale = x.abs().amax(-1, keepdim=True).float() / 448
            x = torch._scaled_mm(
                (x / scale).to(E4M3), weight.t(), scale, torch.ones(1, len(weight)), out_dtype=torch.bfloat16
            ).relu()
        return x


def test_layers_stay_layers():
    torch._dynamo.reset()
    module, x = Quantised(), torch.randn(32, 64).to(torch.bfloat16)
    found = onepass.compile(module, inner="eager")(x)
    assert torch.equal(found, module(x)) and not onepass.reports()[-1].regions


def rounded_inside(q, k, v):
    """SageAttention with its quantisation in the same function."""
    of_q, of_k = (x.abs().amax(-1, keepdim=True) / 127 for x in (q, k))
    a, b = ((x / scale).round().to(torch.int8) for x, scale in ((q, of_q), (k, of_k)))
    return (a.float() @ b.float().mT * of_q * of_k.mT / 8).softmax(-1).to(v.dtype) @ v


def test_numbers_are_rounded_to_bytes_in_front():
    """A kernel that rounds them again for each tile would multiply floats."""
    q, k, v = (torch.randn(1, 2, 96, 64) for _ in range(3))
    report = onepass.explain(rounded_inside, q, k, v.to(torch.bfloat16))
    (region,) = report.regions
    assert "int64(int8(" not in str(report) and "float32(int64(a[" in str(report), region


def rounded_weights(q, k, v, of_q, of_k):
    """Weights that the program itself rounds to e4m3, for a second scaled product; v has its rows as columns."""
    weights = (scores(q, k, of_q, of_k) / 8).softmax(-1)
    return torch._scaled_mm((weights * 448).to(E4M3), v.t(), of_q / 448, of_k, out_dtype=torch.bfloat16)


def test_weights_are_rounded_to_bytes_in_the_kernel():
    """As torch does it, which has NaN beyond 464. Triton's interpreter loses carries, so tiles are compared."""
    torch._dynamo.reset()
    q, k, v = operands()
    given = [q, k, v.t().contiguous().to(E4M3), *scales((), ())]
    found = onepass.compile(rounded_weights, executor="tiled", **OPTIONS)(*given)
    weights = (exact_scores(given) / 8).softmax(-1)
    right = (weights * 448).to(torch.float32).to(E4M3).double() / 448 @ given[2].double().mT * given[3] * given[4]
    is_near(found, right)
    plan = planned(rounded_weights, *given)
    text = "".join(TRITON.source(kernel, plan) for kernel in plan.kernels)
    assert "rounded_to_e4m3(" in text and "<= 464.0" in text and "tl.float8_" not in text


def exact_scores(given):
    q, k, _, of_q, of_k = (x.double() for x in given)
    return q @ k.mT * of_q * of_k

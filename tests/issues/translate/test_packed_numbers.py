"""Two numbers in a byte, taken apart by shifts, were refused; by quotients, each column had a program of its own."""

import pytest
import torch

import onepass
from onepass.compiler.optimize import optimize_all
from onepass.errors import Refusal
from onepass.graph.trace import program_of
from onepass.lowering.executors import TRITON
from onepass.translate.translate import translate

BATCH, KEYS, WIDTH = 2, 50, 16


def by_shifts(x):
    return torch.stack([x & 15, x >> 4], -1).flatten(-2)


def by_quotients(x):
    return torch.stack([x % 16, x // 16], -1).flatten(-2)


def by_masks(x):
    return torch.cat([x & 15, (x & 240) >> 4], -1)


def attention(unpacked):
    def function(q, k, v):
        k, v = (unpacked(x).to(q.dtype) - 8 for x in (k, v))
        return (q @ k.mT * 0.1).softmax(-1) @ v

    return function


def inputs(dtype=torch.uint8):
    generator = torch.Generator().manual_seed(0)
    k, v = (torch.randint(0, 256, (BATCH, KEYS, WIDTH // 2), generator=generator).to(dtype) for _ in range(2))
    return torch.randn(BATCH, 20, WIDTH, generator=generator), k, v


@pytest.mark.parametrize("unpacked", [by_shifts, by_quotients, by_masks])
def test_a_tile_holds_the_columns(unpacked):
    plan = optimize_all(translate(program_of(attention(unpacked), *inputs())).results).plan
    (kernel,) = plan.kernels
    assert kernel.rows.size == 20 and [d.size for d in kernel.grid] == [BATCH]


def test_values_without_a_float_are_multiplied_in_half_precision():
    q, k, v = inputs()
    plan = optimize_all(translate(program_of(attention(by_shifts), q.bfloat16(), k, v)).results).plan
    (kernel,) = plan.kernels
    assert "ieee" not in TRITON.source(kernel, plan)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int32])
@pytest.mark.parametrize("unpacked", [by_shifts, by_quotients, by_masks])
def test_numbers(unpacked, dtype):
    torch._dynamo.reset()
    function, given = attention(unpacked), inputs(dtype)
    found = onepass.compile(function, inner="eager", require="all")(*given)
    torch.testing.assert_close(found, function(*given), atol=1e-5, rtol=1e-5)


SHIFTS = {
    "right": lambda x: x >> 3,
    "right, by name": lambda x: torch.bitwise_right_shift(x, 3),
    "left": lambda x: x << 3,
    "left, by name": lambda x: torch.bitwise_left_shift(x, 3),
    "mask": lambda x: x & 112,
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64])
@pytest.mark.parametrize("name", SHIFTS)
def test_bits(name, dtype):
    """Negative numbers round down, and a shift to the left drops the first bits."""

    def function(q, k, v):
        return (q @ SHIFTS[name](k).to(q.dtype).mT * 1e-3).softmax(-1) @ SHIFTS[name](v).to(q.dtype)

    q, *_ = inputs()
    least, most = (-128, 128) if dtype.is_signed else (0, 256)
    k, v = (torch.arange(least, most).view(1, 16, 16).to(dtype) for _ in range(2))
    given = q, *(x.expand(BATCH, -1, -1).contiguous() for x in (k, v))
    torch._dynamo.reset()
    refused = dtype == torch.int64 and name.startswith("left")
    options = {} if refused else {"require": "all"}
    found = onepass.compile(function, inner="eager", **options)(*given)
    torch.testing.assert_close(found, function(*given), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("change", [lambda x: x >> 8, lambda x: x << 8, lambda x: x >> x])
def test_shift_by_other_numbers_is_refused(change):
    def function(q, k, v):
        return (q @ change(k).to(q.dtype).repeat(1, 1, 2).mT).softmax(-1) @ v.to(q.dtype)

    with pytest.raises(Refusal, match="OP438"):
        translate(program_of(function, *inputs()))

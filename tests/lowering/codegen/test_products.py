"""A float32 sum that a kernel reads again is multiplied in bfloat16 parts: fast, and as good as float32 in a half."""

import os

import pytest
import torch
from torch.nn.functional import elu

from onepass.compiler.optimize import optimize_all
from onepass.graph.trace import program_of
from onepass.lowering.plan.launch_facts import Facts
from onepass.lowering.triton.kernel import emit
from onepass.lowering.triton.launch import Launcher
from onepass.translate.translate import translate

interpreted = pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="needs Triton's interpreter")


def linear(q, k, v):
    q, k = elu(q) + 1, elu(k) + 1
    weight = q @ k.mT
    return (weight @ v) / weight.sum(-1, keepdim=True)


def planned(kind=torch.bfloat16, function=linear):
    torch.manual_seed(0)
    inputs = [torch.randn(1, 2, n, 32).to(kind) for n in (300, 517, 517)]
    return optimize_all(translate(program_of(function, *inputs)).results).plan, inputs


def last_text(plan) -> str:
    return emit(plan.kernels[-1], plan).text


def test_parts_take_the_place_of_float32_products():
    plan, _ = planned()
    assert "ieee" not in last_text(plan) and last_text(plan).count("tl.dot(") == 3


def test_results_in_float32_keep_float32_products():
    plan, _ = planned(function=lambda q, k, v: linear(q, k, v).float() * 1.5)
    assert all(s.output.dtype == "float32" for s in plan.kernels[-1].stores)
    plan, _ = planned(torch.float32)
    assert "ieee" in last_text(plan)


@pytest.mark.sampled(1)
@interpreted
@pytest.mark.parametrize("kind, steps", [(torch.bfloat16, 1.1), (torch.float16, 0.7)])
def test_values_are_rounded_once(kind, steps):
    """By the interpreter towards zero to bfloat16; values themselves are rounded for the first product."""
    plan, inputs = planned(kind)
    result = Launcher(plan)({t.name: x for t, x in zip(plan.inputs, inputs, strict=True)})
    exact = linear(*(x.double() for x in inputs))
    assert (result.double() - exact).abs().max() <= steps * torch.finfo(kind).eps * exact.abs().max()


@interpreted
def test_infinite_and_missing_values_stay_what_they_are():
    plan, (q, k, v) = planned(function=lambda q, k, v: ((elu(q) + 1) @ (elu(k) + 1).mT) @ v)
    v[0, 0, 5, 3], v[0, 0, 9, 4], q[0, 1, 7, 2] = torch.inf, torch.nan, torch.nan
    inputs = {t.name: x for t, x in zip(plan.inputs, (q, k, v), strict=True)}
    result, exact = Launcher(plan)(inputs), (elu(q.double()) + 1) @ ((elu(k.double()) + 1).mT @ v.double())
    for test in (torch.isnan, torch.isposinf):
        assert torch.equal(test(result), test(exact))
    assert torch.isposinf(result).any()


# Two numbers in a byte


def packed_attention(q, k, v):
    k, v = (torch.stack([x & 15, x >> 4], -1).flatten(-2).to(q.dtype) - 8 for x in (k, v))
    return (q @ k.mT * 0.1).softmax(-1) @ v


@pytest.mark.parametrize("rows_last", [False, True])
def test_two_numbers_a_byte_are_two_products_where_rows_stand_last(rows_last):
    """Else both kinds of columns are put side by side first."""
    bytes_ = [torch.zeros(2, 64, 32, dtype=torch.uint8) for _ in range(2)]
    given = [torch.zeros(2, 4, 64, dtype=torch.bfloat16), *bytes_]
    plan = optimize_all(translate(program_of(packed_attention, *given)).results).plan
    text = emit(plan.kernels[0], plan, Facts(frozenset("j"), machine="sm_90", rows_last=rows_last)).text
    assert text.count("summed_centred_bits_4_4_to_bfloat16(k_tile") == rows_last
    assert text.count("tl.dot(") == (4 if rows_last else 2)
    joined = [line for line in text.splitlines() if "tl.join(" in line]
    assert len(joined) == (1 if rows_last else 2)
    assert all(line.startswith("    columns = " if rows_last else "        ") for line in joined)  # behind, in the loop

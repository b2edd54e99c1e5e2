"""Queries, keys and values of one byte in plain Triton: products were written in a type that the language has not."""

import os

import pytest
import torch

import onepass
from onepass.compiler.optimize import optimize_all
from onepass.graph.trace import program_of
from onepass.lowering.executors import TRITON
from onepass.translate.translate import translate

interpreted = pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="needs Triton's interpreter")
KINDS = (torch.float8_e4m3fn, torch.float8_e5m2)


def attention(q, k, v):
    return ((q.float() @ k.float().mT * 0.2).softmax(-1) @ v.float()).to(torch.bfloat16)


def inputs(kind):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(1, 2, n, 32, generator=generator).to(kind) for n in (40, 70, 70)]


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_products_are_of_bfloat16(kind):
    plan = optimize_all(translate(program_of(attention, *inputs(kind))).results).plan
    text = TRITON.source(plan.kernels[0], plan)
    products = [line for line in text.splitlines() if "tl.dot(" in line]
    assert products and "tl.float8" not in text and all("bfloat16" in line for line in products)


@pytest.mark.sampled(1)
@interpreted
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_it_computes_the_right_thing(kind):
    torch._dynamo.reset()
    options = {"inner": "eager", "executor": "triton", "require": "all", "strict": True}
    given = inputs(kind)
    found = onepass.compile(attention, **options)(*given)
    exact = (given[0].double() @ given[1].double().mT * 0.2).softmax(-1) @ given[2].double()
    torch.testing.assert_close(found.double(), exact, atol=1e-2, rtol=1e-2)

"""Columns of two kinds that alternate: what is written for them, that it computes the right thing, and what is left."""

import os

import pytest
import torch

import onepass
from onepass.compiler.optimize import optimize_all
from onepass.graph.trace import program_of
from onepass.lowering.executors import TRITON
from onepass.translate.translate import translate

interpreted = pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="needs Triton's interpreter")
BATCH, KEYS, WIDTH = 2, 50, 32


def pairs(x):
    """Two numbers of four bits in each byte."""
    return torch.stack([x & 15, x >> 4], -1).flatten(-2).to(torch.int8) - 8


def signed_pairs(x):
    """The same, each with its sign."""
    return torch.stack([(x << 4) >> 4, x >> 4], -1).flatten(-2)


def rotated(x):
    """Both sides read more columns than one for each pair: nothing is put side by side."""
    return torch.stack([-x[..., 1::2], x[..., ::2]], -1).flatten(-2)


def attention(unpacked):
    def function(q, k, v):
        k, v = (unpacked(x).to(q.dtype) for x in (k, v))
        return (q @ k.mT * 0.1).softmax(-1) @ v

    return function


def inputs(unpacked, dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(BATCH, 20, WIDTH, generator=generator).to(dtype)
    if unpacked is rotated:
        return q, *(torch.randn(BATCH, KEYS, WIDTH, generator=generator) for _ in range(2))
    kind, least = (torch.int8, -128) if unpacked is signed_pairs else (torch.uint8, 0)
    bytes_ = (torch.randint(least, least + 256, (BATCH, KEYS, WIDTH // 2), generator=generator) for _ in range(2))
    return q, *(x.to(kind) for x in bytes_)


def text_of(unpacked):
    plan = optimize_all(translate(program_of(attention(unpacked), *inputs(unpacked, torch.bfloat16))).results).plan
    (kernel,) = plan.kernels
    return TRITON.source(kernel, plan)


@pytest.mark.parametrize("unpacked", [pairs, signed_pairs])
def test_each_byte_is_read_once(unpacked):
    text = text_of(unpacked)
    assert "tl.join(" in text and "d_half = tl.arange(0, 16)" in text and "d >> 1" not in text


def test_others_stay_choices():
    assert "tl.join(" not in text_of(rotated)


@pytest.mark.sampled(1)
@interpreted
@pytest.mark.parametrize("unpacked", [pairs, signed_pairs, rotated])
def test_it_computes_the_right_thing(unpacked):
    function, given = attention(unpacked), inputs(unpacked)
    torch._dynamo.reset()
    options = {"inner": "eager", "executor": "triton", "require": "all", "verify": "kernel"}
    found = onepass.compile(function, **options)(*given)
    torch.testing.assert_close(found.double(), function(given[0].double(), *given[1:]), atol=1e-5, rtol=1e-5)

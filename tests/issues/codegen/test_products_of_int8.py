"""Queries and keys in int8 were widened for their product: now matrix units take them as they are, with 32-bit sums.

Sums of whole numbers below 2^24 are float32 numbers in any order, so that these scores are exact.
"""

import math
import os

import pytest
import torch

import onepass
from onepass.compiler.optimize import optimize_all
from onepass.graph.trace import program_of
from onepass.lowering.codegen.matrix_products import MOST_COUNTED
from onepass.lowering.executors import TRITON
from onepass.lowering.triton.launch import Launcher
from onepass.translate.translate import translate
from tests.proofs.texts.test_check import hold
from tests.proofs.texts.test_check import plan_of as planned
from tests.support.gluon_ahead_of_time import said_apart

interpreted = pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="needs Triton's interpreter")
OPTIONS = {"inner": "eager", "executor": "triton", "require": "all", "strict": True}


def by_token(q, k, v, of_q, of_k):
    """SageAttention, with a scale for each query and key."""
    return ((q.float() @ k.float().mT * of_q * of_k.mT / 8).softmax(-1) @ v.float()).to(v.dtype)


def by_block(q, k, v, of_q, of_k):
    of_q, of_k = (x.repeat_interleave(16, -2) for x in (of_q, of_k))
    return by_token(q, k, v, of_q[:, :, : q.shape[2]], of_k[:, :, : k.shape[2]])


def scaled_first(q, k, v, of_q, of_k):
    return ((q.float() * of_q) @ (k.float() * of_k).mT / 8).softmax(-1).to(v.dtype) @ v


def in_halves(q, k, v, of_q, of_k):
    return ((q.to(v.dtype) @ k.to(v.dtype).mT).float() * of_q * of_k.mT / 8).softmax(-1).to(v.dtype) @ v


def causal(q, k, v, of_q, of_k):
    i, j = (torch.arange(x.shape[-2]) for x in (q, k))
    score = q.float() @ k.float().mT * of_q * of_k.mT / 8
    return torch.where(j <= i[:, None], score, -math.inf).softmax(-1).to(v.dtype) @ v


PROGRAMS = {"token": by_token, "block": by_block, "head": by_token, "first": scaled_first, "halves": in_halves}
PROGRAMS |= {"causal": causal}
SCALES = {"head": (1, 1), "block": (3, 5)}


def inputs(name="token", width=64, half=torch.bfloat16, rows=40, columns=70):
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randint(-128, 128, (1, 2, n, width), generator=generator).to(torch.int8) for n in (rows, columns))
    v = torch.randn(1, 2, columns, width, generator=generator).to(half)
    sizes = SCALES.get(name, (rows, columns))
    return [q, k, v, *(torch.rand(1, 2, n, 1, generator=generator) * 0.02 + 0.01 for n in sizes)]


def products_of(function, given):
    """The products of the first kernel's text."""
    plan = optimize_all(translate(program_of(function, *given)).results).plan
    return [line for line in TRITON.source(plan.kernels[0], plan).splitlines() if "tl.dot(" in line]


@pytest.mark.parametrize("name", PROGRAMS)
def test_scores_are_products_of_bytes(name):
    scores, *values = products_of(PROGRAMS[name], inputs(name))
    assert "out_dtype=tl.int32" in scores and "sum_of_bytes(" in scores and "ieee" not in scores
    assert values and "bfloat16" in values[0]


def test_wide_sums_are_converted_and_short_ones_stay_halves():
    wide, *_ = products_of(by_token, inputs(width=2 * MOST_COUNTED, rows=4096, columns=4096))
    assert "out_dtype=tl.int32" in wide and ".to(tl.float32)" in wide and "sum_of_bytes(" not in wide
    assert not any("int32" in line for line in products_of(by_token, inputs(width=16)))


def test_other_factors_are_no_product_of_bytes():
    """Bytes that are multiplied by a number each, halves beside bytes, and bytes without a sign."""
    q, k, v, of_q, of_k = inputs()
    of_columns = lambda q, k, v, a, b: by_token(q, k, v, a, b) if k.is_floating_point() else in_columns(q, k, v, a, b)
    in_columns = lambda q, k, v, a, b: ((q.float() * a[..., :64, 0]) @ k.float().mT / 8).softmax(-1).to(v.dtype) @ v
    given = [q[:, :1, :1].expand(1, 1, 40, 64), k[:, :1], v[:, :1], torch.rand(1, 1, 64, 1), of_k[:, :1]]
    assert not any("int32" in line for line in products_of(of_columns, given))
    for pair in ((q.to(torch.bfloat16), k), (q, k.to(torch.bfloat16)), (q.view(torch.uint8), k.view(torch.uint8))):
        assert not any("int32" in line for line in products_of(by_token, [*pair, v, of_q, of_k]))


@pytest.mark.parametrize("name", ["token", "head", "causal"])
@pytest.mark.parametrize("width", [32, 48])
def test_texts_compute_their_terms(name, width):
    """Over exact numbers, with every number of int8 among the factors."""
    given = [x.float() if x.dtype == torch.bfloat16 else x for x in inputs(name, width)]
    texts = hold(*planned(PROGRAMS[name], given))
    assert "sum_of_bytes(" in texts[0].calls[0].text


@pytest.mark.sampled(2)
@interpreted
@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", PROGRAMS)
def test_it_computes_the_right_thing(name, half):
    torch._dynamo.reset()
    given = inputs(name, half=half)
    found = onepass.compile(PROGRAMS[name], **OPTIONS)(*given)
    q, k, v, of_q, of_k = (x.double() for x in given)
    if name == "block":
        of_q, of_k = (x.repeat_interleave(16, -2)[:, :, :n] for x, n in ((of_q, 40), (of_k, 70)))
    score = q @ k.mT * of_q * of_k.mT / 8
    score = score.masked_fill(~torch.ones(40, 70, dtype=torch.bool).tril(), -math.inf) if name == "causal" else score
    exact = score.softmax(-1) @ v
    assert (found.double() - exact).abs().max() <= 4 * torch.finfo(half).eps * exact.abs().max()


@interpreted
@pytest.mark.parametrize("width", [32, 100, 256, 300])
@pytest.mark.parametrize("size", [-128, 127])
def test_scores_are_exact(width, size):
    """Also the largest sums: to the bit those of float64, with their positions."""
    generator = torch.Generator().manual_seed(width)
    x, w = (torch.randint(-128, 128, (n, width), generator=generator).to(torch.int8) for n in (40, 500))
    x[3], w[7] = size, size
    plan, tensors = planned(lambda x, w: (x.float() @ w.float().mT).max(-1), [x, w])
    assert "out_dtype=tl.int32" in TRITON.source(plan.kernels[0], plan)
    values, indices = Launcher(plan).results(tensors)
    exact = (x.double() @ w.double().mT).max(-1)
    assert torch.equal(values.double(), exact.values) and torch.equal(indices, exact.indices)


MACHINES = ("sm_80", "sm_90", "sm_100", "gfx942")
COMPILED = [[machine, "signed bytes", width, "bfloat16"] for machine in MACHINES for width in (64, 128)]


@pytest.mark.slow
def test_compiled_scores_are_instructions_of_bytes():
    said = said_apart("ahead_of_time.py", COMPILED)
    assert all(one.get("of bytes") and not one["converted"] and not one.get("spilled") for one in said), said

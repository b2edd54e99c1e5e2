"""Sums over values of two numbers a byte: one for each kind of columns, and the same numbers as by float64."""

import dataclasses
import math
from inspect import signature

import pytest
import torch

from onepass.compiler.optimize import optimize_all
from onepass.graph.trace import program_of
from onepass.lowering.plan.kernel_config import TritonConfig
from onepass.lowering.triton.launch import Launcher
from onepass.translate.translate import translate

CONFIG = TritonConfig(8, 16, 1, 2)


def unpacked(x, dtype):
    return torch.stack([x & 15, x >> 4], -1).flatten(-2).to(dtype)


def plain(q, k, v, scale, lengths):
    k, v = unpacked(k, q.dtype) - 8, (unpacked(v, q.dtype) - 8) * scale
    keep = torch.arange(k.shape[1]) < lengths[:, None, None]
    return (q @ k.mT * 0.1).masked_fill(~keep, -math.inf).softmax(-1) @ v


def with_a_sum(q, k, v, scale, lengths):
    """Of the same weights, the values of even columns are wanted by themselves, too."""
    w = (q @ (unpacked(k, q.dtype) - 8).mT * 0.1).softmax(-1)
    return w @ (unpacked(v, q.dtype) * scale), w @ (v & 15).to(q.dtype)


def of_half_the_width(q, k, v, scale, lengths):
    """Halves of 8 columns are too few for a product of matrices."""
    return plain(q, k, v[..., :8], scale[..., :16], lengths)


def given(dtype, rows=5, keys=50):
    torch.manual_seed(0)
    k, v = (torch.randint(0, 256, (3, keys, 16), dtype=torch.uint8) for _ in range(2))
    lengths = torch.tensor([keys, 17, 0])
    return torch.randn(3, rows, 32, dtype=dtype), k, v, torch.rand(32, dtype=dtype), lengths


def launched(function, tensors, config, piece=0):
    plan = optimize_all(translate(program_of(function, *tensors)).results).plan
    plan = dataclasses.replace(plan, piece=piece)
    run = Launcher(plan, config)
    named = dict(zip(signature(function).parameters, tensors, strict=True))
    found = run.results({name: named[name] for name in run.names})
    return found, [source.text for source in run._sources.values()]


@pytest.mark.sampled(8)
@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
@pytest.mark.parametrize("chunks, piece", [(1, 0), (3, 0), (1, 16), (2, 32)])
@pytest.mark.parametrize("function", [plain, with_a_sum, of_half_the_width])
def test_values_of_two_kinds_are_right(function, chunks, piece, dtype, tolerance):
    tensors = given(dtype)
    found, texts = launched(function, tensors, dataclasses.replace(CONFIG, chunks=chunks), piece)
    right = function(*(x.double() if x.is_floating_point() else x for x in tensors))
    for one, other in zip(found, right if isinstance(right, tuple) else (right,), strict=True):
        torch.testing.assert_close(one.double(), other, atol=tolerance, rtol=tolerance, equal_nan=True)
    halves = function is not of_half_the_width
    assert any("columns = tl.reshape(tl.trans(tl.join(" in text for text in texts) == halves


def test_what_is_not_finite_stays_in_its_row():
    q, k, v, scale, lengths = given(torch.float32)
    q[1, 2, 3], scale[5] = math.nan, math.nan
    tensors = (q, k, v, scale, lengths)
    (found,), _ = launched(plain, tensors, CONFIG)
    right = plain(*(x.double() if x.is_floating_point() else x for x in tensors))
    torch.testing.assert_close(found.double(), right, atol=1e-5, rtol=1e-5, equal_nan=True)


def test_rows_that_stand_first_have_one_sum():
    _, texts = launched(plain, given(torch.float32), TritonConfig(16, 16, 4, 2))
    assert not any("columns = " in text for text in texts)

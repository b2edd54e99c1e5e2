"""A loop over 49 keys, less than a tile of 64, was emitted twice: for whole tiles, of which there are none, and for the
rest. With a bias, both took 213 registers of a thread, so that a multiprocessor had two programs: windows took 2.7
times as long as now, where the one tile stands there once and without a loop (64 registers).
"""

import math

import pytest
import torch

from onepass.lowering.plan.launch_facts import Facts
from onepass.lowering.triton.kernel import emit
from onepass.lowering.triton.launch import Launcher
from onepass.lowering.triton.launch_texts import launch_texts
from tests.proofs.texts.test_check import hold, plan_of


def windows(q, k, v, bias):
    return ((q @ k.mT) / 4 + bias).softmax(-1) @ v


def padded(q, k, v, bias):
    """Some keys count for no row of a sequence."""
    return ((q @ k.mT) / 4).masked_fill(bias[:, :1] > 0.5, -math.inf).softmax(-1).nan_to_num(0) @ v


def causal(q, k, v, bias):
    keep = torch.arange(k.shape[-2]) <= torch.arange(q.shape[-2])[:, None]
    return ((q @ k.mT) / 4 + bias).masked_fill(~keep, -math.inf).softmax(-1) @ v


def given(length, rows=None):
    torch.manual_seed(0)
    q, k, v = (torch.randn(3, 2, n, 16).bfloat16() for n in (rows or length, length, length))
    return [q, k, v, torch.randn(2, rows or length, length).bfloat16()]


def texts_of(function, inputs):
    plan, tensors = plan_of(function, inputs)
    return [launch.text for one in launch_texts(Launcher(plan), tensors, {}) for launch in one.calls]


@pytest.mark.parametrize("length", [17, 32, 64])
def test_one_tile_has_no_loop(length):
    (text,) = texts_of(windows, given(length, 70))
    assert "for j_start" not in text and text.count("j_start = 0") == 1 and text.count("tl.dot(") == 2
    assert ("j_exists" in text) == (length == 17), "the end of the dim is tested where the tile is longer"


@pytest.mark.parametrize("length", [65, 130])
def test_more_tiles_have_one(length):
    (text,) = texts_of(windows, given(length))
    assert "for j_start" in text


@pytest.mark.parametrize("function", [windows, padded, causal])
@pytest.mark.parametrize("length", [5, 17, 32])
def test_texts_of_one_tile_compute_their_terms(function, length):
    plan, tensors = plan_of(function, given(length, 20))
    hold(plan, tensors, config=None)


def test_a_kernel_of_symbolic_lengths_knows_its_length_at_the_launch():
    plan, _ = plan_of(windows, given(20))
    kernel = plan.kernels[0]
    assert "for j_start" in emit(kernel, plan).text
    assert "for j_start" not in emit(kernel, plan, Facts(short=frozenset({"j"}))).text

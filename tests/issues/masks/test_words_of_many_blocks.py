"""Masks of 18 blocks of rows had no bits on a GPU: a program's tile was as many blocks, which is no power of two."""

import os

import pytest
import torch

from onepass.compiler.optimize import optimize_all
from onepass.graph.trace import program_of
from onepass.lowering.hopper.kernel_form import bind
from onepass.lowering.hopper.mask_words import packed
from onepass.lowering.masks.mask_bits import PackedTiling
from onepass.lowering.planning.mask_plans import packed_mask_plan
from onepass.lowering.tiled.executor import run_tiled
from onepass.lowering.triton.launch import build_map
from onepass.translate.translate import translate


def _masked(q, k, v, given):
    return torch.softmax((q @ k.mT / 8).masked_fill(~given, -torch.inf), -1) @ v


@pytest.mark.slow
@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="needs Triton's interpreter")
@pytest.mark.parametrize("length", [70, 1100])
def test_words_are_the_same_for_every_number_of_blocks(length):
    torch.manual_seed(0)
    inputs = [*(torch.randn(2, 2, length, 64).bfloat16() for _ in range(3)), torch.rand(2, 1, length, length) > 0.5]
    plan = optimize_all(translate(program_of(_masked, *inputs)).results).plan
    bits = packed(bind(plan.kernels[-1]))
    words, given = PackedTiling(bits.record, 64, 64, ()), {bits.sources[0].name: inputs[3]}
    assert torch.equal(build_map(words, given)[0], run_tiled(packed_mask_plan(words), given, {}))

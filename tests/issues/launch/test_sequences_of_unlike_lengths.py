"""One long sequence among short ones was decoded by one program for each head, long after the others were done.

A loop whose length is data is shared out over programs, however many there are. A short sequence has few parts, and
the programs without any end at once.
"""

import math
import os

import pytest
import torch

from onepass.compiler.optimize import optimize_all
from onepass.graph.trace import program_of
from onepass.lowering.launch.split_loops import split_kernel
from onepass.lowering.plan.kernel_config import TritonConfig
from onepass.lowering.triton.kernel import emit
from onepass.lowering.triton.launch import Launcher
from onepass.translate.translate import translate

LENGTHS = (4096, 1, 63, 64, 65, 300, 0)
PARTS = 16


def decode(q, k, v, lens):
    keep = torch.arange(k.shape[2]) < lens[:, None, None, None]
    return (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~keep, -math.inf).softmax(-1) @ v


@pytest.mark.slow
@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="needs Triton's interpreter")
@pytest.mark.parametrize("tile", [16, 64])
def test_each_key_is_in_one_part(tile):
    torch.manual_seed(0)
    lens = torch.tensor(LENGTHS)
    q = torch.randn(len(LENGTHS), 2, 1, 16)
    k, v = (torch.randn(len(LENGTHS), 2, 4096, 16) for _ in range(2))
    for b, length in enumerate(LENGTHS):
        k[b, :, length:], v[b, :, length:] = math.nan, math.nan  # nothing behind a length is read
    program = program_of(decode, q, k, v, lens)
    plan = optimize_all(translate(program).results).plan
    launcher = Launcher(plan, TritonConfig(16, tile, 4, 1, PARTS))
    named = {entry.name: x for entry, x in zip(program.inputs, (q, k, v, lens), strict=True)}
    (found,) = launcher.results(named, {})
    assert [how.endswith(f"; {PARTS} parts") for how in launcher.shared.values()] == [True]
    for b, length in enumerate(LENGTHS):
        if length:
            own = [x[b : b + 1, :, :length].double() for x in (k, v)]
            right = decode(q[b : b + 1].double(), *own, lens[b : b + 1])
            torch.testing.assert_close(found[b : b + 1].double(), right, rtol=1e-5, atol=1e-5)
    assert found[LENGTHS.index(0)].isnan().all()  # as eager has it for a row that keeps nothing


def test_the_kernel_gives_a_short_sequence_few_parts():
    tensors = [torch.empty(4, 2, n, 16) for n in (1, 4096, 4096)]
    plan = optimize_all(translate(program_of(decode, *tensors, torch.ones(4, dtype=torch.long))).results).plan
    (kernel,) = plan.kernels
    assert kernel.loops[0].length_is_data
    assert "tl.maximum(tl.cdiv(" in emit(split_kernel(kernel).first, plan).text

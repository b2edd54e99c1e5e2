"""The last kernel of a joined plan reads sums in the order in which warpgroups add them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = """
import sys
from dataclasses import replace
import torch
from onepass.lowering.joined.config import JoinedConfig
from onepass.lowering.joined.form import bind_joined
from onepass.lowering.joined.join import join
from onepass.lowering.joined.launch import JoinedPlanLauncher
from onepass.lowering.joined.memory import block_size, extent_of, part_of
from onepass.lowering.plan.records import Plan
from tests.support.gluon_ahead_of_time import backward_plan_of

width, length, tile, in_order, by_products = map(int, sys.argv[1:])
found = join(backward_plan_of("full", width, rows=length, columns=length, batch=1, heads=2))
binding = bind_joined(found.main)
config = JoinedConfig(tile, in_order=bool(in_order), by_products=bool(by_products))
launcher = JoinedPlanLauncher(found, binding, config, None)
(sums,), (store,) = found.sums, found.finish.stores
launcher.plan = Plan((found.finish,), (sums,), (store.output,))
launcher.names = (sums.name,)
inner = binding.row_sums[0].matrix.inner
extent, part = extent_of(inner), part_of(inner, config)
exact = torch.randn(1, 2, length, width)
rows = -(-length // 128) * 128
padded = torch.zeros(1, 2, rows, extent)
padded[:, :, :length, :width] = exact
# Each warp of a warpgroup has 16 rows of 64, each thread two rows and two neighbouring columns of each eight.
memory = torch.empty(1, 2, rows // 64, extent // part, 64 * part)
for r in range(64):
    for c in range(part):
        thread = r // 16 * 32 + r % 8 * 4 + c % 8 // 2
        place = (c // 8 * 128 + thread) * 4 + r % 16 // 8 * 2 + c % 2
        blocks = padded.view(1, 2, rows // 64, 64, extent // part, part)
        memory[..., place] = blocks[:, :, :, r, :, c]
blocks = torch.full((1, 2, rows // 64, block_size(inner, config)), torch.nan)  # counters lie behind each block
blocks[..., : 64 * extent] = memory.flatten(-2)
made = launcher.results({sums.name: blocks})[0]
expected = (exact * width**-0.5).to(torch.bfloat16)
torch.testing.assert_close(made, expected, rtol=2**-7, atol=0)
"""


CASES = [(32, 300, 128, 0, 0), (64, 260, 128, 1, 0), (128, 320, 64, 0, 0), (80, 300, 64, 1, 0), (256, 130, 64, 1, 1)]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_finish_kernel_reads_the_order_of_registers(case):
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", PROGRAM, *map(str, case)]
    run = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT)
    assert run.returncode == 0, run.stderr[-2000:]

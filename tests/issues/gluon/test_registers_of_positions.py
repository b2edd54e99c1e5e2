"""Scores with their positions are tiles of 64 bits. Their registers were not counted, so three programs shared a
multiprocessor, and ptxas failed: "Insufficient registers (80)". Others of this form are in test_positions.py."""

import pytest

from onepass.lowering.plan.device import H200
from onepass.lowering.schedule.kernel_time import PRODUCT_REGISTERS
from tests.support.gluon_ahead_of_time import plan_of, source_of


@pytest.mark.parametrize("width", [64, 128])
def test_a_thread_has_registers_for_its_scores_and_positions(width):
    _, config, source = source_of(plan_of("nearest", width, rows=32768))
    held = 2 * config.row_tile * config.loop_tile // (config.consumers * H200.warpgroup)
    assert held + PRODUCT_REGISTERS <= config.registers[0]
    assert "int64" in source.text

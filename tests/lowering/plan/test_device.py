"""Every supported architecture has a complete row, and no other module of the product holds a device's numbers."""

import ast
from dataclasses import fields
from pathlib import Path

import pytest

from onepass.egraph.search.cost import Target
from onepass.lowering.launch.triton_compat import TARGETS
from onepass.lowering.plan import device
from onepass.lowering.plan.device import DEVICES, H200, Gpu, planned_for

ROOT = Path(device.__file__).parent.parent.parent
GPUS = [row for row in DEVICES.values() if isinstance(row, Gpu)]


def test_every_architecture_that_kernels_are_compiled_for_has_a_row():
    assert set(DEVICES) == {*TARGETS, "cpu"} and isinstance(DEVICES["sm_90"], device.HopperGpu)


@pytest.mark.parametrize("row", DEVICES.values(), ids=DEVICES)
def test_a_row_is_complete(row):
    for field in fields(row):
        value = getattr(row, field.name)
        if field.name == "reserved_bytes":
            assert value >= 0
        else:
            assert value and (field.name in ("name", "partitions", "hand_off") or value > 0), field.name


def test_a_plan_does_not_depend_on_the_gpu_at_hand():
    assert planned_for("cuda") is H200 and planned_for("cpu") is DEVICES["cpu"]


def test_the_search_ranks_forms_by_the_row_of_the_device():
    from onepass.compiler.optimize import TARGET

    assert TARGET == Target(matrix=H200.matrix_rate, special=H200.special_rate)
    assert H200.matrix_rate == H200.tensor_flops / 2 / H200.lanes


def test_no_other_module_holds_numbers_of_a_device():
    numbers = {row.multiprocessors for row in GPUS} | {row.shared_bytes for row in GPUS} - {65536}
    found = []
    for folder in ("lowering", "onepass"):
        for path in (ROOT / folder).rglob("*.py"):
            literals = {n.value for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Constant)}
            found += [(path, number) for number in numbers & {x for x in literals if type(x) is int}]
    assert found and {path for path, _ in found} == {Path(device.__file__)}

"""The interface of executors: what each says of a plan and a kernel, and that the tiled one needs no Triton."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from onepass.lowering.executors import (
    EXECUTORS,
    GLUON,
    KERNELS,
    TILED,
    TRITON,
    ConfiguredExecutor,
    SettingsRefused,
    order,
)
from onepass.lowering.planning.planner import build_plan
from tests.support.attention_terms import attention

CPU = torch.device("cpu")
ROOT = Path(__file__).resolve().parents[2]
WITHOUT_TRITON = """
import sys
sys.modules["triton"] = None
import torch
from onepass.api.backend import onepass_backend
from onepass.lowering import executors
from onepass.report import records

def attention(q, k, v):
    return torch.softmax(q @ k.mT, -1) @ v

q, k, v = (torch.randn(1, 2, 40, 16) for _ in range(3))
run = torch.compile(attention, backend=onepass_backend, options={"inner": "eager", "libraries": False})
torch.testing.assert_close(run(q, k, v), attention(q, k, v), rtol=1e-4, atol=1e-5)
(region,) = records.reports()[-1].regions
assert region.ran == "tiled" and not region.notes, region
plan = region.data.plan
assert "Triton" in executors.GLUON.refusal(plan, torch.device("cuda"))
assert executors.order("auto", plan, torch.device("cuda")) == ("triton",)
"""


def planned(dtype="float32", rows=64):
    case = attention((1, 2), rows, rows, 16, dtype=dtype)
    return build_plan(case.term, case.output, case.order), case


def test_the_tiled_executor_runs_where_triton_cannot_be_imported():
    done = subprocess.run([sys.executable, "-c", WITHOUT_TRITON], cwd=ROOT, capture_output=True, text=True)
    assert not done.returncode, done.stderr


def test_every_executor_has_a_name_and_kernels_come_best_first():
    assert set(EXECUTORS) == {"tiled", *KERNELS} and all(EXECUTORS[name].name == name for name in EXECUTORS)
    plan, _ = planned()
    assert order("auto", plan, CPU) == order("tiled", plan, CPU) == ("tiled",)


@pytest.mark.parametrize("dtype, form", [("bfloat16", "warp-specialised Gluon"), ("float32", "plain Triton: ")])
def test_what_is_said_of_a_kernel(dtype, form):
    plan, _ = planned(dtype)
    (kernel,) = plan.kernels
    assert GLUON.describe(kernel).startswith(form)
    assert (GLUON.kernel_refusal(kernel, plan) is None) == (dtype == "bfloat16")
    assert TRITON.kernel_refusal(kernel, plan) is None and "@triton.jit" in TRITON.source(kernel, plan)
    assert TILED.refusal(plan, CPU) is None and TILED.describe(kernel) == TILED.source(kernel, plan) == ""
    assert GLUON.refusal(plan, CPU) is not None


def test_a_report_does_not_promise_a_form_that_fewer_rows_never_have():
    (kernel,) = planned("bfloat16", rows=40)[0].kernels
    assert GLUON.describe(kernel) == "plain Triton: its tiles have 40 rows, and the form's have 64"
    assert GLUON.describe_settings(kernel) == ""


def test_a_kernel_in_pieces_has_a_form_of_its_own():
    (kernel,) = planned("bfloat16")[0].kernels
    assert GLUON.describe(kernel, in_pieces=True) == "warp-specialised Gluon, its loop in pieces"


def test_a_prepared_plan_takes_tensors_in_the_given_order():
    plan, case = planned()
    tensors = {t.name: torch.randn(t.shape) for t in plan.inputs}
    ready = TILED.prepare(plan, tensors, {})
    (result,) = ready.run(list(tensors.values()))
    assert ready.executor == "tiled" and not ready.notes and not ready.has_strides
    assert result.shape == tuple(case.output.shape)


def test_settings_that_nobody_tries_are_refused():
    with pytest.raises(SettingsRefused, match="not tried"):
        ConfiguredExecutor({"executor": "triton", "row_tile": 1 << 40, "loop_tile": 64, "warps": 4, "stages": 1})
    with pytest.raises(SettingsRefused, match="another version"):
        ConfiguredExecutor({"row_tile": 64})

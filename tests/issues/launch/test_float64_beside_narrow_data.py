"""Triton 3.6 fails an assertion of its own, and prints pages, for products of float64 beside a mask of one byte."""

import pytest
import torch

from onepass.api.backend import onepass_backend
from onepass.compiler.optimize import optimize_all
from onepass.graph.trace import program_of
from onepass.lowering.executors import TRITON
from onepass.lowering.launch import triton_compat
from onepass.report import records
from onepass.translate.translate import translate

pytestmark = pytest.mark.usefixtures("fresh")
REASON = "does not compile products of float64 beside keep of bool"


def hidden(q, k, v, keep):
    return torch.softmax((q @ k.mT).masked_fill(~keep, -torch.inf), -1) @ v


def plain(q, k, v, keep):
    return torch.softmax(q @ k.mT, -1) @ v


def by_distance(q, k, v, keep):
    s = -(q.unsqueeze(-2) - k.unsqueeze(-3)).square().sum(-1)
    return torch.softmax(s.masked_fill(~keep, -torch.inf), -1) @ v


def inputs(dtype):
    torch.manual_seed(0)
    return [*(torch.randn(2, n, 24, dtype=dtype) for n in (40, 50, 50)), torch.rand(2, 40, 50) < 0.7]


CASES = [(hidden, torch.float64, True), (by_distance, torch.float64, True)]
CASES += [(hidden, torch.float32, False), (plain, torch.float64, False)]


@pytest.mark.parametrize("function, dtype, refused", CASES)
def test_what_is_refused(function, dtype, refused, monkeypatch):
    plan = optimize_all(translate(program_of(function, *inputs(dtype))).results).plan
    for works in (False, True):
        monkeypatch.setattr(triton_compat, "MULTIPLIES_FLOAT64_BESIDE_NARROW_DATA", works)
        reasons = [reason for kernel in plan.kernels if (reason := TRITON.kernel_refusal(kernel, plan))]
        assert bool(reasons) == (refused and not works)
        assert all(REASON in reason for reason in reasons)


def test_the_original_calls_are_left(monkeypatch):
    monkeypatch.setattr(triton_compat, "MULTIPLIES_FLOAT64_BESIDE_NARROW_DATA", False)
    given, options = inputs(torch.float64), {"inner": "eager", "executor": "triton"}
    result = torch.compile(hidden, backend=onepass_backend, options=options)(*given)
    torch.testing.assert_close(result, hidden(*given))
    assert any(REASON in refusal.reason for refusal in records.reports()[-1].refusals)

"""A kernel that reads no tensor, as a table of powers by distance, was run tile by tile on the CPU for a plan on a GPU:
the comparison of first results failed, and the region ran by its original calls.
"""

import torch

from onepass.egraph.terms.ops import cast, exp, iota
from onepass.egraph.terms.term import Dim, Tensor
from onepass.lowering.planning.planner import build_plan
from onepass.lowering.tiled.executor import _run_kernel, run_tiled

I = Dim("i", 40)


def plan():
    return build_plan(exp(-cast(iota(I), "float32")), Tensor("table", "float32", (40,)), (I,))


def test_its_results_are_where_the_plan_runs():
    (kernel,) = plan().kernels
    assert not kernel.inputs
    others = {"q": torch.empty(3, device="meta")}
    assert _run_kernel(kernel, others, {})["table"].device.type == "meta"


def test_and_it_computes_the_right_thing():
    torch.testing.assert_close(run_tiled(plan(), {}), torch.exp(-torch.arange(40.0)))

"""Estimates of bytes, elements and seconds, by shapes that can be counted by hand."""

import pytest
import torch
from torch import fx

from onepass.fusion import estimates
from onepass.lowering.plan.device import planned_for


@pytest.fixture(scope="module")
def nodes() -> dict[str, fx.Node]:
    """x of (4, 8), w of (8, 2), y = x @ w, and both halves of x as one tuple."""
    graph = fx.Graph()
    x, w = graph.placeholder("x"), graph.placeholder("w")
    y, z = graph.call_function(torch.matmul, (x, w)), graph.call_function(torch.einsum, ("ab,bc->ac", x, w))
    halves = graph.call_method("split", (x, 2))
    values = {x: torch.empty(4, 8), w: torch.empty(8, 2), y: torch.empty(4, 2), z: torch.empty(4, 2)}
    for node, value in {**values, halves: values[x].split(2)}.items():
        node.meta["example_value"] = value
    return {"x": x, "w": w, "y": y, "z": z, "halves": halves}


def test_sizes(nodes):
    assert [estimates.element_count(nodes[n]) for n in "xwy"] == [32, 16, 8]
    assert [estimates.byte_count(nodes[n]) for n in "xwy"] == [128, 64, 32]
    assert estimates.byte_count(nodes["halves"]) == 0
    assert estimates.nominal_count(nodes["halves"]) > 1 << 60
    assert estimates.elements_processed(nodes["y"]) == 32


def test_times(nodes):
    cpu = planned_for("cpu")
    written = estimates.write_and_read_seconds(nodes["y"], cpu)
    assert written == 64 / cpu.memory_bytes
    apart = estimates.separate_kernel_seconds([nodes["y"]], nodes["y"], cpu)
    assert apart == pytest.approx(192 / cpu.memory_bytes + written + cpu.launch_seconds)


def test_a_product_costs_the_same_in_both_spellings(nodes):
    assert estimates.product_cost(nodes["y"]) == estimates.product_cost(nodes["z"]) > 0

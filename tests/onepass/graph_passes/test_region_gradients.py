"""A region without a derived backward is left to Inductor, forward and backward; without Inductor it stays fused."""

import pytest
import torch

import onepass
from onepass.graph_passes import region_gradients
from onepass.report.records import RECOMPUTES

pytestmark = pytest.mark.usefixtures("fresh")


def attention(q, k, v):
    return torch.softmax(q @ k.mT, -1) @ v


def by_largest(q, k, v):
    weights = torch.sigmoid(q @ k.mT)
    return weights / weights.amax(-1, keepdim=True) @ v


def inputs(requires_grad=True):
    return [torch.randn(2, n, 8, requires_grad=requires_grad) for n in (40, 300, 300)]


def report_of(function, tensors, **options):
    torch.compile(function, backend="onepass", options=options)(*tensors)
    return onepass.reports()[-1]


def test_what_is_not_derived_is_left_to_inductor():
    found = report_of(by_largest, inputs())
    (refused,) = found.refusals
    assert found.regions == () and refused.kind == "training"
    assert "largest element asks which one it is" in refused.reason and "Inductor compiles" in refused.reason


def test_without_gradients_it_is_fused():
    assert len(report_of(by_largest, inputs(False)).regions) == 1
    with torch.no_grad():
        assert len(report_of(by_largest, inputs()).regions) == 1


def test_without_inductor_it_is_computed_again():
    (region,) = report_of(by_largest, inputs(), inner="eager").regions
    assert region.backward.startswith(RECOMPUTES)


def test_what_would_take_much_memory_is_computed_again(monkeypatch):
    monkeypatch.setattr(region_gradients, "_memory", lambda device: 1 << 20)
    (region,) = report_of(by_largest, inputs()).regions
    assert region.backward.startswith(RECOMPUTES)


def test_a_derived_backward_is_in_the_report():
    (region,) = report_of(attention, inputs()).regions
    assert region.backward.startswith("derived")


def test_what_stands_in_front_is_left_to_inductor_in_training():
    rotated = lambda q, k, v: attention(torch.tanh(q), k * 2, v)
    assert not any("inside" in line for line in report_of(rotated, inputs()).regions[0].around)

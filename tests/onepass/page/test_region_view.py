"""A region's card: what is computed when the page is made is the plan's, and a piece that fails is left out alone."""

from dataclasses import replace

import pytest
import torch

import onepass
from onepass.lowering.plan.records import Alternative
from onepass.page import region_view as module
from onepass.page.region_view import region_view

X = torch.randn(2, 300, 16)


class Attention(torch.nn.Module):
    def forward(self, q, k, v):
        return torch.softmax(q @ k.mT, -1) @ v


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.ModuleList([Attention(), Attention()])

    def forward(self, q, k, v):
        return self.blocks[1](self.blocks[0](q, k, v), k, v)


@pytest.fixture(scope="module")
def region():
    (found,) = onepass.explain(Model(), X, X.clone(), X.clone()).regions
    return found


def test_equal_layers_are_one_card_with_their_paths(region):
    view = region_view(region, 1)
    assert region.layers == ("blocks.0", "blocks.1") and view.count == 2
    assert view.title == "blocks.0 and 1 more" and view.layers == "blocks.0, blocks.1"
    line = Attention.forward.__code__.co_firstlineno + 1
    assert view.sources[0].file == __file__ and view.sources[0].marked == str(line)


def test_many_layers_are_counted(region):
    named = replace(region, layers=tuple(f"layers.{n}" for n in range(32)))
    assert region_view(named, 1).layers.endswith("layers.5 and 26 more")


def test_a_kernel_has_loops_source_and_time(region):
    (kernel,) = region_view(region, 1).kernels
    assert "for j, tile by tile" in kernel.nest and "def kernel0(" in kernel.source
    assert " ms on an H200" in kernel.estimate


def test_times_are_of_all_occurrences(region):
    speed = region_view(region, 1).speed
    once = region_view(replace(region, count=1), 1).speed
    assert speed.fused == pytest.approx(2 * once.fused) and speed.times == pytest.approx(once.times)
    assert once.eager >= region.data.calls * 1e-6 and region.data.calls >= 3
    assert speed.eager == pytest.approx(2 * once.eager)
    unknown = region_view(replace(region, bytes=(None, None)), 1).speed
    assert unknown.eager is None and unknown.times is None


def test_other_plans_are_listed_with_what_they_cost(region):
    term = region.data.plan.kernels[0].stores[0].term
    others = (Alternative((term,), 1.5), Alternative((), 0.95, computed=(term,)))
    plan = replace(region.data.plan, alternatives=others)
    view = region_view(replace(region, data=replace(region.data, plan=plan)), 1)
    assert [slower for _, slower in view.alternatives] == ["50 % slower", "only 5 % faster"]
    assert [what.startswith("not stored: ") for what, _ in view.alternatives] == [False, True]


def test_gradients_are_rows_with_labels():
    def attend(q, k, v):
        return torch.softmax(q @ k.mT, -1) @ v

    (region,) = onepass.explain(attend, X, X.clone(), X.clone(), gradients=True).regions
    ((kind, rows),) = region_view(region, 1).derivatives
    names = [name for name, _ in rows]
    assert kind == names[0] == "gradients" and {"d q", "d v", "rules", "kernel"} <= {*names}
    joined = "".join(f"{name}{text}" for name, text in rows)
    assert "".join(joined.split()) == "".join(str(region.gradients).split())


def test_a_kernel_that_triton_does_not_run_says_why(region, monkeypatch):
    monkeypatch.setattr(type(module.TRITON), "kernel_refusal", lambda *_: "no such product")
    assert ("in Triton", "not: no such product") in region_view(region, 1).kernels[0].facts


def test_a_report_without_a_plan_is_shown(region):
    view = region_view(replace(region, data=None, certificates=(), lines=(), layers=(), places=()), 1)
    assert view.title == "source line unknown" and view.derivations == () and view.kernels[0].nest == ""
    assert view.captured == region.captured and view.speed.fused is None


@pytest.mark.parametrize("piece", ["derivation_view", "loop_nest", "mask_views"])
def test_a_piece_that_fails_is_left_out_alone(region, piece, monkeypatch):
    def fails(*_):
        raise RuntimeError("no")

    monkeypatch.setattr(module, piece, fails)
    view = region_view(region, 1)
    assert view.extracted == region.extracted and view.laws and view.kernels[0].source
    assert bool(view.derivations) == (piece != "derivation_view")
    assert bool(view.kernels[0].nest) == (piece != "loop_nest")


def test_everything_the_text_says_is_in_the_facts(region):
    facts = dict(region_view(region, 1).facts)
    assert facts["plan"] == region.plan_check and facts["cache"] == region.cache
    assert facts["backward"] == region.backward and "tile by tile" in facts["runs by"]

"""What is fused around a region: the steps in their order, and when none of them runs."""

import pytest
import torch
from torch import fx

from onepass import messages
from onepass.errors import Refusal
from onepass.fusion import fuse as module
from onepass.fusion.compare_plans import FusionContext
from onepass.fusion.fuse import STEPS, fuse
from onepass.regions.refusals import refused_at


class Answer:
    report = None


def context_of(mode: str, made: list) -> FusionContext:
    return FusionContext(None, mode, lambda region: made.append(region) or "a plan", frozenset(), frozenset())


def region(refusal: Refusal | None = None):
    graph = fx.Graph()
    return refused_at(graph.call_function(torch.relu, (graph.placeholder("x"),)), refusal)


def test_the_order():
    names = ["fuse_epilogue", "leave_joins_outside", "defer_products", "fuse_producers", "fuse_gathers"]
    assert [step.__name__ for step in STEPS["auto"]] == names
    assert STEPS["always"] == STEPS["auto"] and [step.__name__ for step in STEPS["training"]] == names[-1:]


@pytest.mark.parametrize("mode, refusal", [("never", None), ("auto", Refusal(messages.REGION_IN_PLACE, call="add_"))])
def test_no_step_runs(mode, refusal, monkeypatch):
    monkeypatch.setitem(STEPS, "auto", (lambda *a: pytest.fail("a step ran"),))
    made, own = [], region(refusal)
    assert fuse(own, context_of(mode, made), ["a note"]) == (own, "a plan")
    assert made == [own]


def test_each_step_gets_the_region_of_the_one_before(monkeypatch):
    first, second = region(), region()
    seen, notes = [], []
    steps = [
        lambda one, context: seen.append(one) or (second, ["wider"]),
        lambda one, context: seen.append(one) or (one, ["as it was"]),
    ]
    monkeypatch.setitem(STEPS, "auto", tuple(steps))
    monkeypatch.setattr(module, "replace", lambda record, **fields: notes.append(fields) or record)
    made = []
    context = FusionContext(None, "auto", lambda one: made.append(one) or Answer(), frozenset(), frozenset())
    found, _ = fuse(first, context, ["before"])
    assert found is second and made == [second] and seen == [first, second]
    assert notes[0] == {"around": ("before", "wider", "as it was")}

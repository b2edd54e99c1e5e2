"""Reasons why derivatives are not derived name the calls that are at fault, by the terms that each call makes."""

import pytest
import torch

from onepass.egraph.calculus.partials import NotDifferentiable
from onepass.graph.trace import program_of
from onepass.training.not_derived import NotDerived, call_name, saying_why_not, why_not


def scores(q, k):
    largest = (q @ k.mT).amax(-1)
    weights = torch.softmax(q @ k.mT, -1).detach()
    return largest, weights, torch.topk(weights, 2).values


@pytest.mark.parametrize(
    ("operation", "calls"),
    [("max", ["amax"]), ("exp", ["softmax"]), ("detach", ["detach"]), ("min", []), ("", [])],
)
def test_calls_are_named_with_their_lines(operation, calls):
    program = program_of(scores, torch.ones(2, 4), torch.ones(3, 4))
    lines = {call_name(node): node.where for node in program.nodes}
    said = ", ".join(f"{name} at {lines[name]}" for name in calls)
    assert why_not(NotDerived("why", operation), program) == (f"why ({said})" if said else "why")
    assert all("test_not_derived.py:" in lines[name] for name in calls)


def test_what_is_at_fault_is_kept():
    with pytest.raises(NotDerived, match="no") as raised, saying_why_not("gradients"):
        raise NotDifferentiable("no", "exp")
    assert raised.value.operation == "exp"

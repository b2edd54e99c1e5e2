"""The estimated time of joined kernels beside the times of backwards that were measured."""

import csv
import math
from pathlib import Path

import pytest
import torch

from onepass.lowering.cost import estimated_plan
from onepass.lowering.cost.estimated_plan import Estimator
from onepass.lowering.cost.joined_cost import joined_estimate, joined_kernels
from tests.support.gluon_ahead_of_time import backward_plan, backward_plan_of, plan_of

MEASURED = Path(__file__).parents[3] / "bench" / "results" / "peers_backward_h100.csv"


def measured():
    with MEASURED.open(newline="") as file:
        rows = [r for r in csv.DictReader(file) if r["contestant"] == "onepass"]
    return {(r["variant"], r["shape"]): float(r["ms"]) for r in rows}


def weighed(q, k, v):
    return (q @ k.mT) @ v


def weighed_before(q, k, v):
    return (q @ k.mT).tril() @ v


def leaves(batch, heads, length, width):
    return [torch.empty(batch, heads, length, width, dtype=torch.bfloat16, device="meta") for _ in range(3)]


@pytest.mark.parametrize("kind", ["full", "causal"])
@pytest.mark.parametrize("batch, heads, length, width", [(4, 32, 4096, 64), (4, 16, 4096, 128), (1, 16, 16384, 128)])
def test_estimates_are_near_measured_backwards(kind, batch, heads, length, width):
    """The measured times are of an H100, whose rates are those of an H200 but for memory."""
    plan = backward_plan_of(kind, width, rows=length, columns=length, batch=batch, heads=heads)
    found = Estimator([{}])(plan)
    true = measured()[kind, f"b{batch}h{heads}s{length}d{width}"]
    assert found.is_settled and abs(math.log(1e3 * found.seconds[0] / true)) < math.log(1.35)


def test_twice_the_batch_takes_twice_the_time():
    times = []
    for batch in (4, 8):
        found = joined_kernels(backward_plan_of("full", 64, rows=4096, columns=4096, batch=batch, heads=32))
        times.append(joined_estimate(found, {}).seconds)
    assert 1.9 < times[1] / times[0] < 2.1


def test_what_is_waited_for_is_named():
    found = joined_kernels(backward_plan_of("full", 64, rows=4096, columns=4096, batch=4, heads=32))
    assert joined_estimate(found, {}).bound == "matrix products"
    short = joined_kernels(backward_plan_of("full", 64, rows=64, columns=64, batch=1, heads=1))
    assert short is None or joined_estimate(short, {}).bound == "launch"


@pytest.mark.parametrize("function, needs", [(weighed, False), (weighed_before, True)])
def test_products_of_products_need_no_tiles_unless_pairs_are_dropped(function, needs, monkeypatch):
    monkeypatch.setattr(estimated_plan, "another_form_could_pay", lambda *_: False)
    found = joined_kernels(backward_plan(function, leaves(2, 8, 2048, 64)))
    assert found.needs_tiles == needs


def test_softmax_needs_its_tiles_and_a_forward_has_none():
    assert joined_kernels(backward_plan_of("full", 64, rows=512, columns=512)).needs_tiles
    assert joined_kernels(plan_of("full", 64)) is None

"""Kernels that are too large for registers, in parts: the parts together compute what the whole did."""

from dataclasses import replace

import pytest
import torch

from onepass.lowering.gluon import launch
from onepass.lowering.gluon.launch import fits
from onepass.lowering.hopper.form_facts import accumulated
from onepass.lowering.hopper.kernel_form import bind
from onepass.lowering.hopper.split_states import with_split_states
from onepass.lowering.tiled.executor import tiled_results
from tests.support.gluon_ahead_of_time import inputs_of, plain, plan_of


def test_states_that_do_not_fit_together_are_two_kernels_with_the_same_results():
    sizes = {"rows": 70, "columns": 90, "batch": 1, "heads": 2}
    torch.manual_seed(0)
    plan, inputs = plan_of("difference", 128, **sizes), inputs_of("difference", 128, **sizes)
    split = with_split_states(plan, fits)
    first, second = split.kernels
    assert all(fits(bind(kernel)) for kernel in split.kernels) and not fits(bind(plan.kernels[0]))
    assert first.stores[0].output in second.inputs and second.stores[0].output == plan.output
    named = dict(zip((t.name for t in plan.inputs), inputs, strict=True))
    (ours,), (whole,) = tiled_results(split, named, {}), tiled_results(plan, named, {})
    exact = plain("difference")(*(x.double() for x in inputs))
    assert (ours - exact).abs().max() <= 2 * (whole - exact).abs().max() + 1e-3


@pytest.mark.parametrize("kind,width", [("full", 128), ("difference", 64), ("logarithm", 128)])
def test_what_fits_stays_whole(kind, width):
    plan = plan_of(kind, width, rows=128, columns=128)
    assert with_split_states(plan, fits) is plan


def test_a_smaller_budget_takes_more_apart():
    plan = plan_of("difference", 64, rows=128, columns=128)
    assert len(with_split_states(plan, lambda binding: accumulated(binding) <= 128).kernels) == 2
    assert with_split_states(plan, lambda binding: accumulated(binding) <= 64) is plan


def test_parts_that_are_not_read_back_as_the_whole_do_not_run_and_the_log_says_it(monkeypatch, caplog):
    caplog.set_level("INFO", launch.__name__)
    plan = plan_of("difference", 128, rows=70, columns=90)
    assert len(launch.suited_plan(plan).kernels) == 2 and not caplog.records
    split = with_split_states(plan, fits)
    wrong = replace(split, kernels=split.kernels[::-1])
    monkeypatch.setattr(launch, "with_split_states", lambda plan, fits: wrong)
    assert launch.suited_plan(plan) is plan
    assert f"{plan.kernels[0].name} stay as they are: it was not read back" in caplog.text

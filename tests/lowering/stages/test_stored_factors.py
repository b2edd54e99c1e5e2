"""Factors that are stored: once for all products that read them, rounded as a product rounds them, and no others."""

from dataclasses import replace

import pytest

from onepass.lowering.executors import TILED
from onepass.lowering.readback.check_plan import differs
from onepass.lowering.stages.stored_factors import of_a_library, with_stored_factors
from tests.support.stored_products import given, gradients, off, right


def test_two_products_read_one_stored_factor():
    plan = gradients()
    found = with_stored_factors(plan)
    assert not differs(found, plan)
    names = [store.output.name for kernel in found.kernels for store in kernel.stores]
    assert names == ["part0", "factor_0", "grad_x", "grad_w"]
    assert found.kernels[1].output.dtype == "bfloat16"
    assert all("part0" not in [t.name for t in kernel.inputs] for kernel in found.kernels[2:])


@pytest.mark.parametrize("offset", [0, 100, -37])
def test_the_results_stay(offset):
    plan, tensors = gradients(offset=offset), given()
    run = lambda one: TILED.prepare(one, tensors, {}).run(list(tensors.values()))
    assert off(run(with_stored_factors(plan)), right(tensors, offset)) <= 4e-3


def test_a_factor_that_must_not_be_rounded_is_not_stored():
    plan = gradients()
    exact = lambda kernel: replace(kernel, exact=frozenset(kernel.loops[0].accumulators[0].reductions))
    changed = replace(plan, kernels=tuple(map(exact, plan.kernels)))
    assert with_stored_factors(changed) is changed


def test_a_factor_of_no_stored_part_is_computed():
    """To store it would take memory that the plan does not take."""
    kernel = gradients().kernels[1]
    alone = replace(gradients(), kernels=(kernel,), inputs=kernel.inputs, outputs=(kernel.output,))
    assert with_stored_factors(alone) is alone


def test_a_report_says_who_multiplies():
    said = [of_a_library(kernel) for kernel in gradients().kernels]
    assert said[0] == "torch's product of matrices" and all(one.startswith(said[0]) for one in said)
    assert not any(map(of_a_library, gradients(dtype="float32").kernels))

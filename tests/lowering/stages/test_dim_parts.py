"""A dim in parts: which kernels and tensors are cut, what is added up, and where it is refused."""

from dataclasses import replace

import pytest

from onepass.egraph.terms.ops import iota, load
from onepass.egraph.terms.traversal import substitute
from onepass.lowering.plan.kernel_edits import with_terms
from onepass.lowering.stages.dim_parts import START, dim_parts, part_of
from onepass.lowering.stages.stored_factors import with_stored_factors
from tests.support.stored_products import gradients


def made(axis):
    plan = with_stored_factors(gradients())
    return plan, dim_parts(plan, plan.parts[0], axis)


@pytest.mark.parametrize(("axis", "cut", "summed"), [(0, {"x", "grad_x"}, "grad_w"), (1, {"w", "grad_w"}, "grad_x")])
def test_tensors_along_the_dim_are_cut_and_sums_over_it_added(axis, cut, summed):
    plan, found = made(axis)
    inputs, results = {name for name in cut if name in "xw"}, {name for name in cut if name not in "xw"}
    assert found.axes == {"part0": axis, "factor_0": axis, **dict.fromkeys(results, 0)}
    assert found.inputs == {(name, 0) for name in inputs}
    assert found.summed == {summed} and found.parts == plan.kernels and not found.before and not found.after


def test_coordinates_begin_where_the_part_does():
    _, found = made(1)
    kernels = [part_of(kernel, found, 128) for kernel in found.parts]
    assert [START in kernel.inputs for kernel in kernels] == [False, True, False, False]
    assert kernels[1].output.shape == (320, 128) and kernels[3].output.shape == (128, 384)
    tensors = {t.name: t.shape for kernel in kernels for t in kernel.inputs}
    assert tensors["w__along0"] == (128, 384) and tensors["x"] == (320, 384) and tensors["part0"] == (320, 128)


def test_an_input_may_be_read_whole_beside_its_part():
    """What no product needs runs once, behind the parts."""
    plan = with_stored_factors(gradients(512, 512, beside=True))
    found = dim_parts(plan, plan.parts[0], 0)
    factor = next(part_of(k, found, 128) for k in found.parts if k.name.startswith("storing"))
    assert {"r", "r__along0"} <= {t.name for t in factor.inputs}
    assert [k.name for k in found.after] == ["finishing_grad_x", "finishing_grad_w"]


def reading(other):
    """The plan whose factor reads something else of the stored scores, made of their read, tensor, row and column; and
    the tensor."""
    plan, _ = made(0)
    factor = plan.kernels[1]
    (part,) = (t for t in factor.inputs if t.name == "part0")
    row, column = map(iota, factor.stores[0].order)
    at = load(part, row, column)
    moved = with_terms(factor, lambda term: substitute(term, {at: other(at, part, row, column)}))
    return replace(plan, kernels=(plan.kernels[0], moved, *plan.kernels[2:])), part


def test_a_tensor_that_is_read_at_other_places_cannot_be_cut():
    changed, part = reading(lambda at, part, row, column: load(part, row, 639 - column))
    assert dim_parts(changed, part, 1) is None
    assert dim_parts(changed, part, 0) is not None


def test_kernels_with_a_dim_along_two_axes_cannot_be_cut():
    changed, part = reading(lambda at, part, row, column: at + load(part, row, row))
    assert dim_parts(changed, part, 0) is None and dim_parts(changed, part, 1) is None

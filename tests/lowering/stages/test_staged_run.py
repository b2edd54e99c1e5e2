"""Plans in stages against float64: parts of either dim, of sizes that do not divide it, hostile values, who runs."""

import math

import pytest
import torch

from onepass.lowering.executors import TILED, TRITON
from onepass.lowering.stages import plain_products, staged_plan
from onepass.lowering.stages.dim_parts import dim_parts
from onepass.lowering.stages.staged_plan import Staged, staged
from onepass.lowering.stages.staged_run import StagedRun
from onepass.lowering.stages.stored_factors import with_stored_factors
from tests.support.stored_products import given, gradients, off, right


def in_parts(plan, axis, count):
    found = with_stored_factors(plan)
    return Staged(found, dim_parts(found, found.parts[0], axis), count)


def results(what, tensors, executor=TILED):
    each = lambda plan, values, strides: executor.prepare(plan, values, {}, strides)
    return StagedRun(what, tensors, each)(tensors)


@pytest.mark.parametrize("offset", [0, 250])
@pytest.mark.parametrize("count", [128, 200, 320])
@pytest.mark.parametrize("axis", [0, 1])
def test_parts_give_the_whole(axis, count, offset):
    tensors = given()
    assert off(results(in_parts(gradients(offset=offset), axis, count), tensors), right(tensors, offset)) <= 4e-3


@pytest.mark.parametrize("count", [128, 200, 512])
@pytest.mark.parametrize("axis", [0, 1])
def test_what_is_beside_the_products(axis, count):
    """A vector that is read by row and by column, and what a gradient adds to its product."""
    tensors = given(512, 512, beside=True)
    found = results(in_parts(gradients(512, 512, offset=7, beside=True), axis, count), tensors)
    assert off(found, right(tensors, 7)) <= 4e-3


@pytest.mark.parametrize("axis", [0, 1])
def test_rows_of_what_is_stored_begin_at_multiples_of_16_bytes(axis, monkeypatch):
    """Parts of 77 elements: torch's products take four times as long where rows begin at any multiple of 2 bytes."""
    seen = []
    multiply = plain_products.multiply
    monkeypatch.setattr(plain_products, "multiply", lambda *tensors: (seen.extend(tensors[:3]), multiply(*tensors))[1])
    tensors = given()
    assert off(results(in_parts(gradients(), axis, 77), tensors, TRITON), right(tensors)) <= 4e-3
    assert len({x.shape for x in seen}) > 4 and any(77 in x.shape for x in seen)
    assert all(step % 8 == 0 for x in seen for step in x.stride() if step != 1)


@pytest.mark.parametrize("result", ["bfloat16", "float32"])
def test_a_sum_over_parts_is_rounded_once(result):
    tensors = given()
    plan = with_stored_factors(gradients(result=result))
    whole, parts = (results(what, tensors) for what in (Staged(plan, None), in_parts(gradients(result=result), 0, 64)))
    assert [x.dtype for x in parts] == [getattr(torch, result)] * 2
    assert off(parts, [x.double() for x in whole]) <= (1e-6 if result == "float32" else 1e-3)


def test_by_kernels_of_triton(monkeypatch):
    monkeypatch.setattr(staged_plan, "MAX_STORED_BYTES", 1 << 17)
    monkeypatch.setattr(staged_plan, "LEAST_OF_A_PART", 64)
    staged.cache_clear()
    tensors = given()
    ready = TRITON.prepare(gradients(), tensors, {})
    assert off(ready.run(list(tensors.values())), right(tensors)) <= 4e-3
    assert ready.executor == "triton, torch's products of matrices" and "parts of a dim of" in ready.notes[0]
    assert not ready.has_strides and ready.deterministic
    staged.cache_clear()


@pytest.mark.parametrize("hostile", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_stays_where_it_is(hostile):
    """An element of the last row makes its own row, and every gradient that sums over the rows, not finite."""
    tensors = given()
    tensors["x"][-1, 3] = hostile
    for axis in (0, 1):
        found = results(in_parts(gradients(), axis, 128), tensors)
        for one, other in zip(found, right(tensors), strict=True):
            assert torch.equal(one.isfinite(), other.float().isfinite())


def test_texts_are_those_of_the_kernels_that_run():
    tensors = given()
    found = TRITON.texts(gradients(), tensors, {})
    assert [one.kernel.name for one in found] == ["storing_factor_0"]

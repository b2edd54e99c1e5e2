"""Plans in stages: scores that a kernel behind the parts reads, gradients of another half type, sizes that are symbols.

Of what is kept whole, a part along the last axis lies in longer rows than kernels of the part were made for: they read
other scores, and gradients were off by a tenth.
"""

import os
from dataclasses import replace

import pytest
import torch

from onepass.egraph.terms.ops import cast, exp, iota, load, sum_over
from onepass.egraph.terms.term import Dim, Tensor
from onepass.lowering.executors import GLUON, TILED, TRITON
from onepass.lowering.plan.plan_choice import PlanChoice
from onepass.lowering.plan.records import Store
from onepass.lowering.planning.planner import normalised, plan_with, prepared
from onepass.lowering.stages.dim_parts import dim_parts
from onepass.lowering.stages.plain_products import plain_product
from onepass.lowering.stages.staged_plan import Staged, staged
from onepass.lowering.stages.staged_run import StagedRun
from onepass.lowering.stages.stored_factors import with_stored_factors
from tests.support.stored_products import given, gradients, off, right

needs_interpreter = pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="needs Triton's interpreter")
ROWS, COLUMNS, WIDTH = 320, 640, 384


def with_cotangent():
    """Gradients of x, w and of what is added to the scores, with stored scores."""
    c, o = Dim("c", WIDTH), Dim("o", WIDTH)
    rows, columns = [Dim(f"i{k}", ROWS) for k in range(3)], [Dim(f"j{k}", COLUMNS) for k in range(3)]
    x, w = Tensor("x", "bfloat16", (ROWS, WIDTH)), Tensor("w", "bfloat16", (COLUMNS, WIDTH))
    number = lambda t, *index: cast(load(t, *map(iota, index)), "float32")
    scores = [sum_over(c, number(x, i, c) * number(w, j, c)) for i, j in zip(rows, columns, strict=True)]
    by_column, by_row, alone = (exp(score - 1.0) for score in scores)
    sums = [
        (sum_over(columns[0], by_column * number(w, columns[0], o)), (rows[0], o)),
        (sum_over(rows[1], by_row * number(x, rows[1], o)), (columns[1], o)),
        (alone, (rows[2], columns[2])),
    ]
    results = [Tensor(f"grad_{k}", "bfloat16", tuple(d.size for d in order)) for k, (_, order) in enumerate(sums)]
    stores = [Store(cast(term, "bfloat16"), result, order) for (term, order), result in zip(sums, results, strict=True)]
    return with_stored_factors(plan_with(prepared(normalised(stores)), choice=PlanChoice(stored=scores[:1])))


@pytest.mark.parametrize("axis", [0, 1])
def test_a_kernel_of_a_part_is_made_for_how_its_scores_lie(axis):
    plan, tensors = with_cotangent(), given(ROWS, COLUMNS, WIDTH)
    what = Staged(plan, dim_parts(plan, plan.parts[0], axis), 200)
    assert [kernel.output.name for kernel in what.parts.after] == ["grad_2"]
    made, ran = [], []

    def prepare(stage, values, strides):
        made.append({name: x.stride() for name, x in values.items()})
        ready = TILED.prepare(stage, values, {}, strides)
        seen = lambda place: lambda some: ran.append((place, [x.stride() for x in some])) or ready.run(some)
        return replace(ready, run=seen(len(made) - 1))

    StagedRun(what, tensors, prepare)(tensors)
    assert len(ran) > 2 and all([*made[place].values()] == strides for place, strides in ran)


@needs_interpreter
@pytest.mark.parametrize("axis", [0, 1])
def test_parts_of_what_is_kept_give_the_gradients(axis):
    plan, tensors = with_cotangent(), given(ROWS, COLUMNS, WIDTH)
    what = Staged(plan, dim_parts(plan, plan.parts[0], axis), 200)
    found = StagedRun(what, tensors, lambda stage, values, strides: TRITON.prepare(stage, values, {}, strides))(tensors)
    x, w = tensors["x"].double(), tensors["w"].double()
    cotangent = (x @ w.T - 1).exp()
    assert off(found, (cotangent @ w, cotangent.T @ x, cotangent)) <= 5e-3


def test_a_product_is_rounded_to_its_factors_type_or_not_by_torch():
    """Torch's product on a GPU refuses factors of bfloat16 and a result of float16."""
    staged.cache_clear()
    what = staged(gradients(result="float16"))
    types = [k.output.dtype for k in what.plan.kernels if plain_product(k) is not None]
    assert types == ["float32"] * 3
    tensors = given()
    found = StagedRun(what, tensors, lambda stage, values, strides: TILED.prepare(stage, values, {}, strides))(tensors)
    assert [x.dtype for x in found] == [torch.float16] * 2 and off(found, right(tensors)) <= 4e-3


def test_a_report_says_torch_multiplies_only_where_sizes_are_known():
    """Stages need known sizes. The report and the estimate said that torch multiplies, and kernels did."""
    plan = gradients(columns="n")
    assert staged(plan) is None
    assert not any("torch" in GLUON.describe(kernel) for kernel in plan.kernels)
    assert all("torch" in GLUON.describe(kernel) for kernel in gradients().kernels)


def test_one_part_is_not_said_to_store_little():
    plan = with_stored_factors(gradients())
    parts = dim_parts(plan, plan.parts[0], 0)
    assert "parts" not in str(Staged(plan, parts, parts.size)) and "2 parts" in str(Staged(plan, parts, 200))

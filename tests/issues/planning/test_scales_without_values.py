"""A largest score that another kernel needs was stored with the columns of the values that it had been taken beside,
where nothing was summed but values (weights that are not divided): shapes did not fit, and the original calls ran."""

import pytest
import torch

import onepass
from tests.lowering.planning.test_inline_producers import planned


def weights_too(q, k, v):
    scores = q @ k.mT
    weights = (scores - scores.amax(-1, keepdim=True)).exp()
    return weights @ v, weights


def inputs(rows, columns):
    torch.manual_seed(rows)
    return [torch.randn(1, 2, n, 16) for n in (rows, columns, columns)]


def test_what_is_stored_of_a_scale_has_no_columns():
    plan = planned(weights_too, inputs(20, 600))
    between = [s for kernel in plan.kernels for s in kernel.stores if s.output not in plan.outputs]
    assert all(s.term.dims == {*s.order} and len(s.order) < 4 for s in between)
    assert all(s.term.dims <= {*s.order} for kernel in plan.kernels for s in kernel.stores)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("executor", ["tiled", "triton"])
@pytest.mark.parametrize("dynamic", [False, True])
def test_weights_that_are_not_divided_are_given_back(dynamic, executor):
    torch._dynamo.reset()
    options = {"inner": "eager", "executor": executor, "strict": True, "libraries": False}
    compiled = torch.compile(weights_too, backend="onepass", options=options, dynamic=dynamic)
    for rows, columns in ((23, 11), (40, 300)):
        given = inputs(rows, columns)
        for result, wanted in zip(compiled(*given), weights_too(*(x.double() for x in given)), strict=True):
            torch.testing.assert_close(result.double(), wanted, atol=2e-5, rtol=1e-5)
    assert onepass.reports()[-1].regions

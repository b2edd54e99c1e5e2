"""A plan that has no kernel raised under strict where Triton's interpreter was to run it; on a GPU it was refused."""

import pytest
import torch

from onepass.api.backend import onepass_backend
from onepass.lowering.plan.records import NotPlannable
from onepass.report import records
from onepass.runtime import executors

pytestmark = pytest.mark.usefixtures("fresh")


MIXTURE = torch.tensor([[1.0, 0.5], [-0.5, 1.0]])


def mixed(q, k, v):
    """Scores of two heads mixed: their product has a batch inside of a tile, and they are too many to be stored."""
    return torch.einsum("hg,bgij->bhij", MIXTURE.to(q.dtype), q @ k.mT).softmax(-1) @ v


def plain(q, k, v):
    return torch.softmax(q @ k.mT, -1) @ v


def inputs():
    return [torch.randn(1, 2, 3000, width) for width in (8, 8, 3)]


def assert_right(function, executor):
    given = inputs()
    options = {"inner": "eager", "executor": executor, "strict": True}
    result = torch.compile(function, backend=onepass_backend, options=options)(*given)
    torch.testing.assert_close(result.double(), function(*(x.double() for x in given)), rtol=1e-5, atol=1e-5)
    return records.reports()[-1]


@pytest.mark.parametrize("executor", ["triton", "gluon"])
def test_it_is_refused_and_the_original_runs(executor):
    found = assert_right(mixed, executor)
    (refusal,) = found.refusals
    assert not found.regions and not found.failures
    assert "is left to torch" in refusal.reason and refusal.kind == "no plan"
    assert refusal.file == __file__ and refusal.line


@pytest.mark.parametrize("executor", ["auto", "tiled"])
def test_where_no_kernel_runs_it_is_fused(executor):
    assert assert_right(mixed, executor).regions[0].ran == "tiled"


def test_what_turns_out_at_a_call_is_no_failure_either(monkeypatch):
    def declines(*_):
        raise NotPlannable("not of these sizes")

    monkeypatch.setitem(executors.EXECUTORS, "triton", declines)
    (region,) = assert_right(plain, "triton").regions
    assert region.ran == "tiled" and any("has no kernel for it: not of these sizes" in note for note in region.notes)

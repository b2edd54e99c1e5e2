"""A part that cost had stored was cut once more, behind a sum over other names of dims: its store read itself.

The check after the stage raised WrongPlanning, and the region was left as written.
"""

import pytest
import torch

import onepass

pytestmark = pytest.mark.usefixtures("fresh")


def shifted_by_its_mean(q, k, v, bias):
    s = q @ k.mT + bias
    s = s + s.mean(-1, keepdim=True)
    e = (s - s.max(-1, keepdim=True).values).exp()
    return (e / e.sum(-1, keepdim=True)) @ v, torch.logsumexp(s, -1)


def test_it_has_a_plan_and_computes_the_right_thing():
    torch.manual_seed(0)
    inputs = [*(torch.randn(2, 1, 417, n) for n in (5, 5, 24)), torch.randn(417)]
    options = {"strict": True, "inner": "eager", "executor": "tiled"}
    found = torch.compile(shifted_by_its_mean, backend=onepass.onepass_backend, options=options)(*inputs)
    (report,) = onepass.reports()
    assert report.regions and not report.refusals and not report.failures
    for mine, wanted in zip(found, shifted_by_its_mean(*(x.double() for x in inputs)), strict=True):
        torch.testing.assert_close(mine.double(), wanted, rtol=1e-4, atol=1e-4)

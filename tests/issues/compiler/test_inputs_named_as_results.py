"""An input called `output` had the name of the region's result: the kernel's tensors are known by name, so it read the
memory that it writes.
"""

import pytest
import torch

import onepass
from onepass.api.backend import onepass_backend
from onepass.report import records

pytestmark = pytest.mark.usefixtures("fresh")


def one(output, k, v):
    return torch.softmax(output @ k.mT / 3, -1) @ v


def two(output, output1, output_):
    scores = output @ output1.mT / 3
    return torch.softmax(scores, -1) @ output_, scores.logsumexp(-1)


def inputs():
    return [torch.randn(1, 2, 20, 16) for _ in range(3)]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("function", [one, two])
@pytest.mark.parametrize("executor", ["triton", "tiled"])
def test_the_result_is_right(function, executor):
    x = inputs()
    options = {"inner": "eager", "executor": executor, "strict": True}
    result = torch.compile(function, backend=onepass_backend, options=options)(*x)
    torch.testing.assert_close(result, function(*x), rtol=1e-4, atol=1e-5)
    assert records.reports()[-1].regions[0].ran == executor


def test_the_inputs_keep_their_names():
    (region,) = onepass.explain(two, *inputs()).regions
    assert "output[" in region.captured and "output1[" in region.captured

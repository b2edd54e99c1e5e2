"""A region whose mask came from an item of a tuple that no region makes (meshgrid) read all of it, and crashed."""

import torch

import onepass
from onepass.api.backend import onepass_backend


def near(q, k, v, at):
    rows, columns = torch.meshgrid(at, at, indexing="ij")
    keep = (rows - columns).abs() < 9
    return torch.softmax((q @ k.mT / 4).masked_fill(~keep, -torch.inf), -1) @ v


def inputs():
    torch.manual_seed(0)
    return [*(torch.randn(2, 3, 24, 16) for _ in range(3)), torch.arange(24)]


def test_the_region_reads_the_items():
    (region,) = onepass.explain(near, *inputs()).regions
    assert region.passes == (3, 1)


def test_it_is_right():
    given = inputs()
    run = torch.compile(near, backend=onepass_backend, options={"inner": "eager", "strict": True})
    torch.testing.assert_close(run(*given), near(*given), rtol=1e-4, atol=1e-5)

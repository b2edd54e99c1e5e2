"""A mask of blocks drawn at random, `drawn[i // 16, j // 16]`, was looked up in front of its region: a mask of all rows
and columns lived in memory, and its block map was built again in every call.

A smaller table of truth values is read in the region, at places made anew.
"""

import pytest
import torch

from onepass.api.backend import onepass_backend
from onepass.regions.find import find_regions
from onepass.report import records

N = 48


def attend(q, k, v, drawn):
    i, j = torch.arange(N, device=q.device)[:, None], torch.arange(N, device=q.device)
    keep = (i == j) | ((i - j).abs() < 4) | drawn[i // 16, j // 16 - 3]  # the last counts from the end
    return torch.softmax((q @ k.mT).masked_fill(~keep, -torch.inf), -1) @ v


def inputs():
    torch.manual_seed(0)
    return [*(torch.randn(2, N, 16) for _ in range(3)), torch.rand(3, 3) < 0.4]


@pytest.mark.usefixtures("fresh")
def test_the_region_reads_the_table():
    def backend(gm, _):
        (region,) = find_regions(gm.graph)
        found.extend(n.name for n in region.inputs)
        return gm.forward

    found = []
    torch.compile(attend, backend=backend)(*inputs())
    assert sorted(found) == ["l_drawn_", "l_k_", "l_q_", "l_v_"]


@pytest.mark.usefixtures("fresh")
def test_the_region_reads_the_bias():
    def backend(gm, _):
        found.extend(n.name for n in find_regions(gm.graph)[0].inputs)
        return gm.forward

    found = []
    torch.compile(by_distance, backend=backend)(*inputs()[:3], torch.randn(2, 2 * N - 1))
    assert sorted(found) == ["l_bias_", "l_k_", "l_q_", "l_v_"]


@pytest.mark.sampled(1)
@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("executor", ["tiled", "triton"])
def test_it_is_right(executor):
    given = inputs()
    options = {"inner": "eager", "strict": True, "executor": executor}
    run = torch.compile(attend, backend=onepass_backend, options=options)
    torch.testing.assert_close(run(*given), attend(*given), rtol=1e-5, atol=1e-5)
    assert records.reports()[-1].regions[0].ran == executor


def by_distance(q, k, v, bias):
    i, j = torch.arange(N, device=q.device)[:, None], torch.arange(N, device=q.device)
    return torch.softmax(q @ k.mT + bias[:, j - i + N - 1] + bias.T[(j - i).clamp(-7, 7) + 7].permute(2, 0, 1), -1) @ v


@pytest.mark.sampled(1)
@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("executor", ["tiled", "triton"])
@pytest.mark.parametrize("dynamic", [None, True])
def test_a_bias_by_distance_is_read_in_the_region(executor, dynamic):
    given = [*inputs()[:3], torch.randn(2, 2 * N - 1)]
    options = {"inner": "eager", "strict": True, "executor": executor}
    run = torch.compile(by_distance, backend=onepass_backend, options=options, dynamic=dynamic)
    torch.testing.assert_close(run(*given), by_distance(*given), rtol=1e-5, atol=1e-5)
    assert records.reports()[-1].regions[0].ran == executor

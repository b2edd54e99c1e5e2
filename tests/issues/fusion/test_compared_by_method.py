"""A comparison of two tensors that Dynamo wrote as a method (`__eq__`, as torch 2.11 does) was a border of its region:
every call made a mask of all rows and columns, and a block map of it, though the ids had not changed.

Comparisons are pointwise under every name, and so is what makes one mask of another: the region reads the tensors that
the mask was made of.
"""

import operator

import pytest
import torch

from onepass.api.backend import onepass_backend
from onepass.compiler.options import Options
from onepass.graph_passes.pipeline import rewrite
from onepass.regions.find import find_regions
from onepass.report import records

COMPARED = {f"__{name}__": getattr(operator, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")}


def attend(q, k, v, ids, mask):
    keep = (ids[:, None] == ids[None, :]) & ~mask
    return torch.softmax((q @ k.mT).masked_fill(~keep, -torch.inf), -1) @ v


def inputs():
    torch.manual_seed(0)
    mask = (torch.rand(48, 48) < 0.2) & ~torch.eye(48, dtype=torch.bool)
    return [*(torch.randn(2, 48, 16) for _ in range(3)), torch.arange(48) // 20, mask]


def written_by_method(name):
    """A backend that writes the comparison as a method, and says what the only region reads."""

    def backend(gm, _):
        (node,) = (n for n in gm.graph.nodes if n.target is operator.eq or n.target == "__eq__")
        node.op, node.target = "call_method", name
        (region,) = find_regions(gm.graph)
        read.extend(n.name for n in region.inputs)
        found = rewrite(gm.graph, Options.read({"strict": True}))
        assert found.regions
        gm.recompile()
        return gm.forward

    read = []
    return backend, read


@pytest.mark.sampled(1)
@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("name", COMPARED)
def test_a_region_reads_what_is_compared(name):
    def eager(q, k, v, ids, mask):
        keep = COMPARED[name](ids[:, None], ids[None, :]) & ~mask
        return torch.softmax((q @ k.mT).masked_fill(~keep, -torch.inf), -1) @ v

    backend, read = written_by_method(name)
    given = inputs()
    torch.testing.assert_close(torch.compile(attend, backend=backend)(*given), eager(*given), equal_nan=True)
    assert {"l_ids_", "l_mask_"} < set(read) and len(read) == 5


@pytest.mark.usefixtures("fresh")
def test_it_is_right():
    given = inputs()
    options = {"inner": "eager", "strict": True, "executor": "triton"}
    run = torch.compile(attend, backend=onepass_backend, options=options)
    torch.testing.assert_close(run(*given), attend(*given), rtol=1e-5, atol=1e-5)
    assert records.reports()[-1].regions[0].ran == "triton"

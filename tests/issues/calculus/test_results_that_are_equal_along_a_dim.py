"""Queries that are one row for all have one result for all. A gradient read the stored result with the dim of its rows,
which nothing else in the sum had: it was added once for each row. Now the first row is read."""

import pytest
import torch

from onepass import onepass_backend
from onepass.compiler import compiled_region
from onepass.compiler.options import Options
from onepass.egraph.terms.ops import const
from onepass.egraph.terms.traversal import subterms
from onepass.graph.trace import program_of
from onepass.training.plans import training

pytestmark = pytest.mark.usefixtures("fresh")


def alike(row, y):
    return ((row.expand(200, 16) * 1) @ y.T / 4).softmax(-1) @ y


def drawn(dtype):
    torch.manual_seed(0)
    return [torch.randn(n, 16).to(dtype).requires_grad_() for n in (1, 170)]


def test_the_first_row_of_the_result_is_read():
    text = compiled_region.make(program_of(alike, *drawn(torch.bfloat16)), Options(), (), {}).text
    kernels = training(text, [True, True]).every.region.plan.kernels
    nodes = [n for k in kernels for store in k.stores for n in subterms(store.term)]
    rows = {n.args[0] for n in nodes if n.op == "load" and n.attrs[0].name == "output"}
    assert rows == {const(0)}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_gradients(dtype):
    given = drawn(dtype)
    options = {"inner": "eager", "libraries": False, "executor": "tiled"}
    found = torch.compile(alike, backend=onepass_backend, options=options)(*given)
    cotangent = torch.randn_like(found)
    wide = [x.detach().double().requires_grad_() for x in given]
    expected = torch.autograd.grad(alike(*wide), wide, cotangent.double())
    near = 1e-4 if dtype == torch.float32 else 0.05
    for one, right in zip(torch.autograd.grad(found, given, cotangent), expected, strict=True):
        torch.testing.assert_close(one.double(), right, rtol=near, atol=near * float(right.abs().max()))

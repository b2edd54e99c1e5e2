"""A graph whose nodes have no example values, or lack some, stays as it is: one line says so, and what to do.

A pass that was called on torch.fx.symbolic_trace(f).graph logged a traceback of "'NoneType' object has no attribute
'device'".
"""

import logging

import pytest
import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.passes.fake_tensor_prop import FakeTensorProp

import onepass
from onepass.errors import NotFused

pytestmark = pytest.mark.usefixtures("fresh")


def attention(q, k, v):
    return torch.softmax(q @ k.mT / 8, -1) @ v


def layers(x, w):
    return torch.cumsum(torch.einsum("ij,kj->ik", x, w).topk(3, -1)[0], 0).reshape(-1) @ w.flatten()


def inputs():
    return [torch.randn(2, 40, 16) for _ in range(3)]


@pytest.mark.parametrize("function", [attention, layers])
@pytest.mark.parametrize("strict", [False, True])
def test_one_line_and_the_graph_as_it_was(function, strict, caplog):
    module = fx.symbolic_trace(function)
    before = module.code
    with caplog.at_level(logging.WARNING, logger="onepass"):
        onepass.GraphPass(strict=strict)(module.graph)
    module.recompile()
    assert module.code == before
    (line,) = [r for r in caplog.records if r.name.startswith("onepass")]
    assert line.exc_info is None and "\n" not in line.getMessage()
    assert "no example value" in line.getMessage() and "FakeTensorProp" in line.getMessage()
    (refused,) = onepass.reports()[-1].refusals
    assert refused.code == "OP113"


@pytest.mark.parametrize("which", ["placeholder", "call_function"])
def test_some_values_that_lack(which, caplog):
    module = make_fx(attention)(*inputs())
    before = module.code
    for node in module.graph.find_nodes(op="placeholder") if which == "placeholder" else [*module.graph.nodes]:
        if node.op == which:
            node.meta.pop("val", None)
    with caplog.at_level(logging.WARNING, logger="onepass"):
        onepass.GraphPass()(module.graph)
    module.recompile()
    assert module.code == before and not any(r.exc_info for r in caplog.records)
    assert {r.code for r in onepass.reports()[-1].refusals} == {"OP113"}


def test_where_all_is_required_it_is_an_error():
    with pytest.raises(NotFused, match="make_fx"):
        onepass.GraphPass(require="all")(fx.symbolic_trace(attention).graph)


def test_the_ways_out_are_fused():
    tensors = inputs()
    filled = fx.symbolic_trace(attention)
    FakeTensorProp(filled).propagate(*tensors)
    for module in (filled, make_fx(attention)(*tensors)):
        onepass.GraphPass(require="all")(module.graph)
        module.recompile()
        exact = attention(*(x.double() for x in tensors))
        assert (module(*tensors).double() - exact).abs().max() < 1e-5

"""An einsum of three or four tensors hides the products of a region: Mamba-2's quadratic form was not found."""

from types import SimpleNamespace

import pytest
import torch

import onepass
from onepass.regions import open_calls

pytestmark = pytest.mark.usefixtures("fresh")
B, H, N, D, E = 2, 3, 40, 16, 8


def quadratic(c, b, mask, x):
    return torch.einsum("bhid,bhjd,ij,bhje->bhie", c, b, mask, x)


def listed(c, b, mask, x):
    return torch.einsum("bhid, bhjd, ij, bhje -> bhie", [c, b, mask, x])


def weighed(c, b, mask, x):
    weights = torch.softmax(torch.einsum("bhid,bhjd->bhij", c, b), -1)
    return torch.einsum("bhij,ij,bhje->bhie", weights, mask, x)


def triple(c, b, mask, x):
    """Three products, and a letter of size 1."""
    return torch.einsum("bhid,bhjd,bhje,bhke->bhik", c, b, x, x[:, :1])


def implicit(c, b, mask, x):
    return torch.einsum("...id,...jd,ij,...je->...ie", c, b, mask, x)


def diagonal(c, b, mask, x):
    return torch.einsum("bhid,bhjd,jj,bhje->bhie", c, b, mask, x)


def given(gradients=False):
    torch.manual_seed(0)
    mask = torch.ones(N, N).tril()
    c, b, x = (torch.randn(B, H, N, width) * 0.3 for width in (D, D, E))
    return [t.requires_grad_(gradients) for t in (c, b, mask, x)]


def run(function, inputs, **options):
    compiled = torch.compile(function, backend=onepass.onepass_backend, options={"inner": "eager"}, **options)
    return compiled(*inputs)


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("function", [quadratic, listed, weighed, triple, implicit, diagonal])
def test_it_is_one_region_where_letters_say_all(function, gradients):
    inputs = given(gradients)
    result, exact = run(function, inputs), function(*(t.double() for t in inputs))
    torch.testing.assert_close(result.double(), exact, rtol=1e-4, atol=1e-5)
    regions = [region for report in onepass.reports() for region in report.regions]
    assert len(regions) == (function not in (implicit, diagonal))
    if gradients:
        read = [t for t, use in zip(inputs, (True, True, function is not triple, True)) if use]
        found, wanted = (torch.autograd.grad(y.square().sum(), read) for y in (result, exact))
        for one, other in zip(found, wanted, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


def test_sizes_may_be_symbols():
    for rows in (40, 56, 24):
        c, b, x = (torch.randn(B, H, rows, width) * 0.3 for width in (D, D, E))
        inputs = [c, b, torch.ones(rows, rows).tril(), x]
        exact = quadratic(*(t.double() for t in inputs))
        torch.testing.assert_close(run(quadratic, inputs, dynamic=True).double(), exact, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "path, equations",
    [
        ([(2, 3), (0, 1), (0, 1)], ["ij,bhje->ijbhe", "bhid,bhjd->bhij", "ijbhe,bhij->bhie"]),
        ([(0, 1, 2, 3)], ["bhid,bhjd->bhij", "ij,bhij->ijbh", "bhje,ijbh->bhie"]),
    ],
)
def test_the_order_is_that_of_torch(path, equations, monkeypatch):
    """With opt_einsum installed, torch asks it for the order. Else torch goes from left to right."""
    finder = SimpleNamespace(contract_path=lambda *given, **options: (path, "said"))
    stand_in = SimpleNamespace(
        is_available=lambda: True, enabled=True, strategy="auto", get_opt_einsum=lambda: finder
    )
    monkeypatch.setattr(open_calls, "opt_einsum", stand_in)
    graph = torch.fx.Graph()
    tensors = [graph.placeholder(name) for name in "cbmx"]
    for node, value in zip(tensors, given()):
        node.meta["example_value"] = value
    node = graph.call_function(torch.functional.einsum, ("bhid,bhjd,ij,bhje->bhie", *tensors))
    node.meta["example_value"] = quadratic(*given())
    graph.output(node)
    open_calls._multiply_in_pairs(graph, node)
    made = [n.args[0] for n in graph.nodes if n.op == "call_function"]
    assert made == equations
    module = torch.fx.GraphModule(torch.nn.Module(), graph)
    torch.testing.assert_close(module(*given()), quadratic(*given()), rtol=1e-4, atol=1e-5)

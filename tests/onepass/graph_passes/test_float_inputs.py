"""Python floats that are inputs of a graph: of a module, of a call, made of others, and what no region takes."""

import pytest
import torch

from onepass.api.backend import onepass_backend
from onepass.report import records

pytestmark = pytest.mark.usefixtures("fresh")


class Scaled(torch.nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.scale = scale

    def forward(self, q, k, v):
        return torch.softmax(q @ k.mT * (self.scale * 2), -1) @ v


def scaled(q, k, v, t):
    return torch.softmax(q @ k.mT * t, -1) @ v


def shifted(q, k, v, t):
    return torch.softmax((q @ k.mT / t).tanh() * t, -1) @ v


def counting(graphs, inner):
    def backend(module, example_inputs):
        graphs.append(module)
        return onepass_backend(module, example_inputs, options={"inner": inner, "strict": True, "libraries": False})

    return backend


def inputs(n, kind):
    torch.manual_seed(n)
    return [torch.randn(1, 2, n, 8).to(kind) for _ in range(3)]


def compare(found, function, given, *more):
    exact = function(*(x.double() for x in given), *more)
    assert found.dtype == given[0].dtype
    allowed = 4 * torch.finfo(found.dtype).eps * max(1.0, exact.abs().max().item())
    assert (found.double() - exact).abs().max() <= allowed + 4 * (function(*given, *more).double() - exact).abs().max()


@pytest.mark.slow
@torch.no_grad()
@pytest.mark.parametrize("inner", ["eager", "inductor"])
@pytest.mark.parametrize("function", [scaled, shifted])
def test_a_call_gives_another_float(function, inner):
    """With dynamic=True, one graph; else one more for what turns out to change."""
    for dynamic, most in ((True, 1), (None, 2)):
        torch._dynamo.reset()
        fast = torch.compile(function, backend=counting(graphs := [], inner), dynamic=dynamic)
        for n, t in ((9, 0.5), (17, 0.7), (33, 1.5), (20, -2.5)):
            given = inputs(n, torch.float32)
            compare(fast(*given, t), function, given, t)
        assert len(graphs) == most
        assert records.reports()[-1].regions and not records.reports()[-1].refusals


@pytest.mark.sampled(1)
@torch.no_grad()
@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16, torch.float64])
def test_the_type_is_the_tensors(kind):
    fast = torch.compile(scaled, backend=counting([], "eager"), dynamic=True)
    for t in (0.5, 0.25):
        given = inputs(11, kind)
        compare(fast(*given, t), scaled, given, t)
    assert records.reports()[-1].regions


@pytest.mark.slow
@torch.no_grad()
def test_a_modules_float_is_a_number_under_a_guard():
    module = Scaled(8**-0.5)
    fast = torch.compile(module, backend=counting(graphs := [], "eager"), dynamic=True)
    for n in (9, 17, 33):
        given = inputs(n, torch.float32)
        compare(fast(*given), module, given)
    assert len(graphs) == 1 and records.reports()[-1].regions
    module.scale = 0.5
    compare(fast(*given), module, given)
    assert len(graphs) == 2


@torch.no_grad()
def test_integers_take_the_type_that_they_had():
    """An integer tensor times a number is float32; times a float64 tensor it would be float64."""

    def counted(q, k, v, bias, t):
        return torch.softmax(q @ k.mT + bias * t, -1) @ v

    fast = torch.compile(counted, backend=counting([], "eager"), dynamic=True)
    bias = torch.arange(11 * 11).view(11, 11)
    for t in (0.01, 0.02):
        given = inputs(11, torch.float32)
        assert fast(*given, bias, t).dtype == torch.float32
        torch.testing.assert_close(fast(*given, bias, t), counted(*given, bias, t), atol=1e-5, rtol=1e-5)

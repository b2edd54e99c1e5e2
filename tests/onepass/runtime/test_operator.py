"""The operation as PyTorch sees it: schema, fake, gradients, modes; and that a call costs the host little."""

import time

import pytest
import torch
from torch import library
from torch.fx.experimental.proxy_tensor import make_fx

from onepass.compiler import compiled_region
from onepass.compiler.options import Options
from onepass.graph.trace import program_of
from onepass.runtime import executors, operator

pytestmark = pytest.mark.usefixtures("fresh")
REGION = torch.ops.onepass.region.default


def attention(q, k, v):
    return torch.softmax(q @ k.mT, -1) @ v


def arguments(dtype=torch.float32):
    return [torch.randn(1, 2, 24, 16, dtype=dtype) for _ in range(3)]


def text(dtype=torch.float32) -> str:
    return compiled_region.make(program_of(attention, *arguments(dtype)), Options(libraries=False)).text


@pytest.mark.sampled(1)
@pytest.mark.parametrize("differentiable", [False, True])
def test_pytorch_checks_the_operation(differentiable):
    inputs = [x.requires_grad_(differentiable) for x in arguments()]
    library.opcheck(REGION, (inputs, text(), []))


def test_a_second_derivative_is_that_of_the_original_calls():
    inputs = [x.requires_grad_() for x in arguments(torch.float64)]
    found = []
    for call in (lambda *given: REGION(list(given), text(torch.float64), [])[0], attention):
        (first,) = torch.autograd.grad(call(*inputs).square().sum(), inputs[:1], create_graph=True)
        found.append(torch.autograd.grad(first.sin().sum(), inputs))
    torch.testing.assert_close(*found)


def test_gradients_and_who_asks_for_them():
    inputs, region = arguments(torch.float64), text(torch.float64)
    inputs[0].requires_grad_()
    inputs[2].requires_grad_()
    result = REGION(inputs, region, [])[0]
    mine = torch.autograd.grad(result.square().sum(), [inputs[0], inputs[2]])
    eagers = torch.autograd.grad(attention(*inputs).square().sum(), [inputs[0], inputs[2]])
    for a, b in zip(mine, eagers):
        torch.testing.assert_close(a, b)
    assert not REGION([x.detach() for x in inputs], region, [])[0].requires_grad
    with torch.no_grad():
        assert not REGION(inputs, region, [])[0].requires_grad
    with torch.inference_mode():
        torch.testing.assert_close(REGION(inputs, region, [])[0], result)


@pytest.mark.parametrize("grad", [False, True])
def test_a_tracing_mode_sees_the_operation_and_not_what_runs_it(grad):
    region = text()
    with torch.set_grad_enabled(grad):
        graph = make_fx(lambda *x: REGION(list(x), region, [])[0])(*arguments()).graph
    assert next(n.target for n in graph.nodes if n.op == "call_function") is REGION
    shapes = make_fx(lambda *x: REGION(list(x), region, [])[0], tracing_mode="fake")(*arguments())
    torch.testing.assert_close(shapes(*(given := arguments())), attention(*given), rtol=1e-4, atol=1e-5)


def test_a_negative_view_is_read_as_it_is():
    inputs, region = arguments(), text()
    inputs[1] = torch._neg_view(inputs[1])
    torch.testing.assert_close(REGION(inputs, region, [])[0], attention(*inputs), rtol=1e-4, atol=1e-5)


def host_seconds(call, runs: int = 300) -> float:
    call()
    start = time.process_time()
    for _ in range(runs):
        call()
    return (time.process_time() - start) / runs


def test_a_call_costs_the_host_little(monkeypatch):
    """Of the order of a call of SDPA; the limit is loose because the machine may be busy. Figures: bench/cpu.py."""
    stub = lambda found, tensors, call: lambda given: [torch.empty_like(given[0])]
    monkeypatch.setitem(executors.EXECUTORS, "tiled", stub)
    inputs, region = arguments(), text()
    sdpa = lambda: torch.nn.functional.scaled_dot_product_attention(*inputs)
    with torch.no_grad():
        ratios = [host_seconds(lambda: REGION(inputs, region, [])) / host_seconds(sdpa) for _ in range(5)]
    assert min(ratios) < 2.5


def test_a_text_that_nothing_can_be_made_of_runs_its_original_calls(monkeypatch):
    monkeypatch.setattr(compiled_region, "make", lambda *_: 1 / 0)
    inputs = arguments()
    region = compiled_region.Fused("k", program_of(attention, *inputs), Options(), (), ("q", "k", "v"), None, None).text
    torch.testing.assert_close(operator.runner(region)(inputs, ())[0], attention(*inputs))
    torch.testing.assert_close(REGION(inputs, region, [])[0], attention(*inputs))

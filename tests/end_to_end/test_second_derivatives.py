"""Gradients of gradients, tangents and batches through a fused region's backward: the original calls, as in float64."""

import math

import pytest
import torch
from torch.autograd import forward_ad

import onepass
from onepass.api.backend import onepass_backend
from onepass.compiler import compiled_region
from onepass.compiler.options import Options
from onepass.graph.trace import program_of
from onepass.runtime import operator  # noqa: F401  registers the operation
from tests.support.dual_numbers import dual_numbers_were_compiled

pytestmark = pytest.mark.usefixtures("fresh")


def attention(q, k, v, bias, temperature):
    n = q.shape[-2]
    hidden = torch.ones(n, n, dtype=torch.bool).triu(1)
    return torch.softmax((q @ k.mT * temperature + bias).masked_fill(hidden, -math.inf), -1) @ v


def with_sums(q, k, v, bias, temperature):
    score = q @ k.mT * temperature + bias
    return torch.softmax(score, -1) @ v, torch.logsumexp(score, -1)


def inputs(rows=13, dtype=torch.float32):
    torch.manual_seed(rows)
    given = [*torch.randn(3, 2, rows, 8), torch.randn(rows, rows), torch.tensor(0.4)]
    return [x.to(dtype) for x in given]


def compiled(function, inner="eager"):
    return torch.compile(function, backend=onepass_backend, options={"inner": inner, "strict": True})


def assert_as_in_float64(derivatives, function=attention, tolerance=1e-4):
    """Holds what `derivatives(function, leaves)` gives through the compiled function to float64."""
    found, exact = (
        derivatives(call, [x.to(kind, copy=True).requires_grad_() for x in inputs()])
        for call, kind in ((compiled(function), torch.float32), (function, torch.float64))
    )
    torch.testing.assert_close(found, exact, check_dtype=False, atol=tolerance, rtol=tolerance)
    dual_numbers_were_compiled()
    (region,) = onepass.reports()[-1].regions
    assert region.backward.startswith("derived")


def gradients(call, leaves):
    """The gradients of a scalar of the results, with a graph of their own."""
    found = call(*leaves)
    results = found if isinstance(found, tuple) else (found,)
    return torch.autograd.grad(sum(r.sin().sum() for r in results), leaves, create_graph=True)


def squares(tensors):
    return sum(x.square().sum() for x in tensors)


def test_gradgradcheck_in_float64():
    q, k, v, bias, temperature = inputs(dtype=torch.float64)
    tensors = [*(x[:1, :4, :3] for x in (q, k, v)), bias[:4, :4], temperature]
    tensors = [x.clone().requires_grad_() for x in tensors]
    found = compiled_region.make(program_of(attention, *(t.detach() for t in tensors)), Options(executor="tiled"))
    region = lambda *given: torch.ops.onepass.region(list(given), found.text, [])
    assert torch.autograd.gradgradcheck(region, tensors)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("function", [attention, with_sums])
def test_gradient_penalty(function):
    def derivatives(call, leaves):
        return torch.autograd.grad(squares(gradients(call, leaves)), leaves)

    assert_as_in_float64(derivatives, function)


def test_a_gradient_of_one_result_alone():
    def derivatives(call, leaves):
        found = torch.autograd.grad(call(*leaves)[1].sin().sum(), leaves, create_graph=True, allow_unused=True)
        assert found[2] is None
        return torch.autograd.grad(squares(g for g in found if g is not None), [leaves[0], leaves[3]])

    assert_as_in_float64(derivatives, with_sums)


def test_third_derivatives():
    def derivatives(call, leaves):
        second = torch.autograd.grad(squares(gradients(call, leaves)), leaves[:2], create_graph=True)
        return torch.autograd.grad(squares(second), leaves)

    assert_as_in_float64(derivatives, tolerance=1e-3)


def test_inputs_that_are_computed_from_each_other():
    def related(call, leaves):
        q, _, _, bias, temperature = leaves
        given = (q, q.cos(), q * temperature, bias, temperature)
        (first,) = torch.autograd.grad(call(*given).sin().sum(), q, create_graph=True)
        return torch.autograd.grad(first.square().sum(), [q, bias, temperature])

    assert_as_in_float64(related)


def test_a_penalty_beside_the_loss_accumulates():
    def derivatives(call, leaves):
        result = call(*leaves)
        first = torch.autograd.grad(result.sin().sum(), leaves[:1], create_graph=True)
        (result.square().sum() + squares(first)).backward()
        return [x.grad for x in leaves]

    assert_as_in_float64(derivatives)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("vectorize", [False, True])
def test_hessian_and_its_products(vectorize):
    def derivatives(call, leaves):
        scalar = lambda q: call(q, *leaves[1:]).sin().sum()
        short = leaves[0].detach()
        direction = torch.linspace(-1, 1, short.numel(), dtype=short.dtype).view_as(short)
        product = torch.autograd.functional.hvp(scalar, short, direction)[1]
        whole = torch.autograd.functional.hessian(scalar, short, vectorize=vectorize)
        torch.testing.assert_close(product.flatten(), whole.view(short.numel(), -1) @ direction.flatten())
        return whole

    assert_as_in_float64(derivatives)


def test_forward_over_reverse():
    def derivatives(call, leaves):
        with forward_ad.dual_level():
            q = forward_ad.make_dual(leaves[0], leaves[1].detach())
            found = gradients(call, [q, *leaves[1:]])
            return [forward_ad.unpack_dual(g).tangent for g in found]

    assert_as_in_float64(derivatives)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("create_graph", [False, True])
def test_a_cotangent_with_a_tangent(create_graph):
    def derivatives(call, leaves):
        result = call(*leaves)
        with forward_ad.dual_level():
            cotangent = forward_ad.make_dual(torch.ones_like(result), leaves[2].detach())
            found = torch.autograd.grad(result, leaves, cotangent, create_graph=create_graph)
            return [forward_ad.unpack_dual(g).tangent for g in found]

    assert_as_in_float64(derivatives)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("create_graph", [False, True])
def test_a_batch_of_cotangents(create_graph):
    def derivatives(call, leaves):
        result = call(*leaves)
        rows = torch.eye(result.numel(), dtype=result.dtype)[:9].view(9, *result.shape)
        options = {"is_grads_batched": True, "create_graph": create_graph}
        found = torch.autograd.grad(result, leaves, rows, **options)
        return torch.autograd.grad(squares(found), leaves) if create_graph else found

    assert_as_in_float64(derivatives)


def test_vmap_of_a_vector_jacobian_product():
    function = compiled(attention)
    result, pull = torch.func.vjp(function, *inputs())
    rows = torch.eye(result.numel())[:9].view(9, *result.shape)
    found = torch.func.vmap(pull)(rows)
    exact, pull = torch.func.vjp(attention, *inputs(dtype=torch.float64))
    torch.testing.assert_close(found, torch.func.vmap(pull)(rows.double()), check_dtype=False, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(result, exact, check_dtype=False, atol=1e-4, rtol=1e-4)


def test_strides_of_gradients_are_those_of_the_inputs():
    leaves = [x.requires_grad_() for x in inputs()]
    leaves[1] = inputs()[1].mT.contiguous().mT.requires_grad_()
    found = gradients(compiled(attention), leaves)
    assert [g.stride() for g in found] == [x.stride() for x in leaves]


def test_an_inference_tensor_among_the_inputs():
    def derivatives(call, leaves):
        with torch.inference_mode():
            bias = leaves[3].clone()
        given = [*leaves[:3], bias, leaves[4]]
        first = torch.autograd.grad(call(*given).sin().sum(), leaves[:3], create_graph=True)
        return torch.autograd.grad(squares(first), leaves[:3])

    assert_as_in_float64(derivatives)


@pytest.mark.slow
def test_behind_inductor_torch_says_that_it_has_none():
    """A graph of regions alone runs without Inductor, and has them."""
    leaves = [x.requires_grad_() for x in inputs()]
    step = lambda function: torch.autograd.grad(squares(gradients(compiled(function, "inductor"), leaves)), leaves)
    with pytest.raises(RuntimeError, match=r"donated buffers|double backward"):
        step(lambda *given: attention(*given).tanh())
    right = torch.autograd.grad(squares(gradients(attention, leaves)), leaves)
    torch.testing.assert_close(step(attention), right, atol=1e-4, rtol=1e-4)

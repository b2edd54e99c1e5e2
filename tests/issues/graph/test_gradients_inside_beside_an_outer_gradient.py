"""torch.func.grad inside of a compiled function raised where an argument of the function needs gradients itself.

Gradients are a tuple of a transform's wrappers, which have no memory of their own. They were unwrapped alone only.
"""

import pytest
import torch

import onepass
from onepass.graph.nodes import value_of_node
from onepass.graph.survey import storages

pytestmark = pytest.mark.usefixtures("fresh")


def loss(q, k, v):
    return (torch.relu(q @ k.mT) @ v).mean()


def gradient_and_loss(q, k, v):
    return torch.func.grad(loss, 2)(q, k, v), loss(q, k, v)


def largest_alone(q, k, v):
    scores = lambda x: (x @ k.mT - (x @ k.mT).max(-1).values[..., None]).sum()
    return torch.func.grad(scores)(q), loss(q, k, v)


@pytest.mark.parametrize("function", [gradient_and_loss, largest_alone])
@pytest.mark.parametrize("needs", [1, 2])
def test_results_and_gradients_are_those_of_eager(function, needs):
    given = [torch.randn(3, 16, 8) for _ in range(3)]
    wide = [x.double() for x in given]
    for inputs in (given, wide):
        inputs[needs].requires_grad_()
    found, right = onepass.compile(function)(*given), function(*wide)
    torch.testing.assert_close(found, right, check_dtype=False, atol=1e-4, rtol=1e-4)
    (gradient,) = torch.autograd.grad(found[1], given[needs])
    torch.testing.assert_close(gradient, torch.autograd.grad(right[1], wide[needs])[0], check_dtype=False)


def test_values_of_a_tuple_are_unwrapped():
    seen = []

    def backend(module, inputs):
        for node in module.graph.nodes:
            value = value_of_node(node)
            seen.extend((x, storages(node)) for x in (value if isinstance(value, tuple) else ()))
        return module

    given = [torch.randn(3, 16, 8) for _ in range(3)]
    torch.compile(gradient_and_loss, backend=backend)(*given)
    tensors = [(x, memory) for x, memory in seen if isinstance(x, torch.Tensor)]
    assert tensors and all(memory for _, memory in tensors)
    assert not any(torch._C._functorch.is_functorch_wrapped_tensor(x) for x, _ in tensors)

"""In training relu was a choice of 0 in the forward, too, so that a key of the weight 0 counted as masked.

Its infinite value was left out of the sum, where eager, and onepass without gradients, have 0 · ∞. Now the forward has
the program's own results, and the choice is for the gradients alone. Found by `tests.fuzz --gradients --seed 1000`.
"""

import pytest
import torch
import torch.nn.functional as F

import onepass
from onepass.compiler import compiled_region
from onepass.compiler.options import Options
from onepass.egraph.terms.traversal import subterms
from onepass.graph.trace import program_of
from onepass.training.plans import training

pytestmark = pytest.mark.usefixtures("fresh")


def attention(q, k, v):
    return F.relu(q @ k.mT).square() @ v


def normalised(q, k, v):
    p = F.relu(q @ k.mT)
    return p / (p.sum(-1, keepdim=True) + 1.0) @ v


def clamped(q, k, v):
    return (q @ k.mT).clamp(min=0) @ v


def tensors():
    return [torch.randn(2, n, 16) for n in (40, 300, 300)]


@pytest.mark.parametrize("function", [attention, normalised, clamped])
def test_the_forward_has_no_choice(function):
    text = compiled_region.make(program_of(function, *tensors()), Options()).text
    plan = training(text, [True] * 3).forward.plan
    first = next(kernel for kernel in plan.kernels if plan.outputs[0] in [store.output for store in kernel.stores])
    (store,) = [store for store in first.stores if store.output == plan.outputs[0]]
    assert "where" not in {node.op for node in subterms(store.term)}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("function", [attention, normalised, clamped])
def test_values_and_gradients_are_eagers(function):
    q, k, v = tensors()
    v[:, -1] = torch.inf
    leaves = [x.requires_grad_() for x in (q, k, v)]
    result = torch.compile(function, backend="onepass", options={"inner": "eager", "strict": True})(*leaves)
    eager = function(*leaves)
    torch.testing.assert_close(result, eager, equal_nan=True)
    assert eager.isnan().any() and eager.isinf().any()
    (found,) = torch.autograd.grad(result, v, torch.ones_like(result))
    (right,) = torch.autograd.grad(eager, v, torch.ones_like(eager))
    torch.testing.assert_close(found, right, atol=1e-3, rtol=0)
    assert onepass.reports()[-1].regions[0].backward.startswith("derived")

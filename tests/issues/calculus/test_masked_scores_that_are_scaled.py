"""A masked score that is multiplied by a learned number: the number's gradient was NaN, and rows without keys wrong.

(dP - delta) · -3.4e38 is infinite, and 0 · ∞ is NaN: the weight of 0 has to come first. In a row that keeps nothing,
the logarithm of the number of keys was absorbed by the mask's number. Found by `tests.fuzz --gradients --seed 9100`.
"""

import pytest
import torch

from onepass.compiler import compiled_region
from onepass.compiler.options import Options
from onepass.egraph.terms.traversal import factors, subterms
from onepass.graph.trace import program_of
from onepass.training.plans import training

pytestmark = pytest.mark.usefixtures("fresh")
NAMES = ("q", "k", "v", "temperature", "mask")


def chosen(q, k, v, temperature, mask):
    scores = torch.where(mask > -1, q @ k.mT, torch.finfo(q.dtype).min)
    return torch.softmax(scores * temperature, -1) @ v


def added(q, k, v, temperature, mask):
    return torch.softmax((q @ k.mT + mask) * temperature, -1) @ v


def tensors(hidden_row=False):
    generator = torch.Generator().manual_seed(0)
    drawn = [torch.randn(2, n, 8, generator=generator) for n in (40, 300, 300)]
    mask = torch.zeros(40, 300).masked_fill(torch.rand(40, 300, generator=generator) < 0.4, torch.finfo().min)
    if hidden_row:
        mask[3] = torch.finfo().min
    return [*drawn, torch.tensor(0.7), mask]


@pytest.mark.parametrize("function", [chosen, added])
def test_weights_come_before_masked_scores_and_a_rows_shift_is_saved(function):
    text = compiled_region.make(program_of(function, *tensors()), Options()).text
    stores = training(text, [True] * 4 + [False]).stores
    assert [store.output.name for store in stores.saved] == ["shift", "log"]
    products = [factors(node) for store in stores.gradients.values() for node in subterms(store.term)]
    weighted = [[f.op for f in found] for found in products if any(f.op == "exp" for f in found)]
    assert weighted and all(ops.index("exp") <= 1 for ops in weighted)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("function", [chosen, added])
@pytest.mark.parametrize("hidden_row", [False, True])
def test_gradients_are_right(function, hidden_row):
    """Of a row that keeps nothing, the number's own gradient is a difference of numbers like the mask's."""
    inputs = tensors(hidden_row)
    compiled = torch.compile(function, backend="onepass", options={"inner": "eager", "strict": True})
    cotangent = 3 * torch.randn(2, 40, 8, generator=torch.Generator().manual_seed(1))
    found = []
    for run, cast in ((compiled, torch.Tensor.float), (function, torch.Tensor.double)):
        leaves = [cast(x).clone().requires_grad_() for x in inputs[: 3 if hidden_row else 4]]
        result = run(*leaves, *map(cast, inputs[len(leaves) :]))
        found.append(torch.autograd.grad(result, leaves, cast(cotangent)))
    for name, mine, exact in zip(NAMES, *found):
        error = (mine.double() - exact).abs().max()
        assert mine.isfinite().all() and error <= 1e-5 * exact.abs().max(), (name, error)

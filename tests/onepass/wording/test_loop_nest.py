"""The loops of kernels as text: each loop, state and store of the plan is in it, with its limits."""

import pytest
import torch

import onepass
from onepass.wording.loop_nest import loop_nest

X = torch.randn(2, 300, 16)


def causal(q, k, v):
    keep = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).tril()
    return torch.softmax((q @ k.mT).masked_fill(~keep, float("-inf")), -1) @ v


def by_documents(q, k, v, documents):
    same = documents[:, None] == documents[None]
    return torch.softmax((q @ k.mT).masked_fill(~same, float("-inf")), -1) @ v


def summed(q, k, v):
    return torch.relu(q @ k.mT) @ v


def nest(function, *inputs) -> str:
    (region,) = onepass.explain(function, *inputs).regions
    assert len(region.data.plan.kernels) == 1
    return loop_nest(region.data.plan.kernels[0])


def test_a_causal_loop_ends_at_the_row():
    text = nest(causal, X, X.clone(), X.clone())
    assert "for j, tile by tile, where j < i + 1" in text and "only elements" not in text
    assert text.splitlines()[0].startswith("for each h, in parallel") and "for each tile of i, in parallel" in text
    assert "⊕ with the scale Σ_d q[h, i, d] · k[h, j, d]" in text
    assert text.splitlines()[-1].strip().startswith("output[h, i, e] = mantissa(")


def test_what_is_tested_is_said():
    text = nest(by_documents, X, X.clone(), X.clone(), torch.arange(300) // 70)
    assert "only elements with documents[i] = documents[j]" in text


@pytest.mark.parametrize("function", [causal, summed])
def test_every_state_is_read_by_its_name(function):
    (region,) = onepass.explain(function, X, X.clone(), X.clone()).regions
    for kernel in region.data.plan.kernels:
        text = loop_nest(kernel)
        for accumulator in (a for loop in kernel.loops for a in loop.accumulators):
            assert text.count(accumulator.name) >= 2
        assert text.count("for j") == len(kernel.loops) and "⊕_j" not in text and "Σ_j" not in text

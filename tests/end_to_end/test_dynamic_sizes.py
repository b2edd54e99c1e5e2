"""Symbolic sizes: one compilation serves every length from 2 on, and each length is right, not only whole tiles.

Dynamo itself compiles once more for an axis of size 1, whatever the backend; the tests hold onepass to Dynamo's count.
"""

import math

import pytest
import torch

from onepass import process_state
from onepass.api.backend import onepass_backend
from onepass.runtime import operator

LENGTHS = (7, 2, 3, 5, 13, 16, 17, 31, 32, 33, 64, 65, 97, 101, 127, 128, 129, 191, 257, 1)


def full(q, k, v):
    return torch.softmax(q @ k.mT / math.sqrt(q.shape[-1]), -1) @ v


def causal(q, k, v):
    keep = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).tril()
    scores = (q @ k.mT / math.sqrt(q.shape[-1])).masked_fill(~keep, -math.inf)
    return torch.softmax(scores, -1) @ v


def window(q, k, v):
    rows, columns = torch.arange(q.shape[-2])[:, None], torch.arange(k.shape[-2])[None]
    keep = (columns <= rows) & (rows - columns <= 16)
    return torch.softmax(torch.where(keep, q @ k.mT / math.sqrt(q.shape[-1]), -math.inf), -1) @ v


def library(q, k, v):
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)


def grouped(q, k, v):
    share = q.shape[1] // k.shape[1]
    return full(q, k.repeat_interleave(share, 1), v.repeat_interleave(share, 1))


SELF = (causal, window, library)  # rows and keys are of one sequence


def calls(function):
    """Inputs of twenty calls: both lengths and the batch change."""
    generator = torch.Generator().manual_seed(0)
    for turn, length in enumerate(LENGTHS):
        batch, keys = 2 + turn % 3, length if function in SELF or length == 1 else LENGTHS[-2 - turn]
        q = torch.randn(batch, 4, length, 16, generator=generator)
        k = torch.randn(batch, 2 if function is grouped else 4, keys, 16, generator=generator)
        tensors = (q, k, torch.randn(*k.shape, generator=generator))
        for tensor in tensors:
            torch._dynamo.maybe_mark_dynamic(tensor, [0, 2])
        yield tensors


def compiled(function, backend, check):
    """At which lengths the backend was called."""
    torch._dynamo.reset()
    seen = []

    def counting(graph, inputs):
        seen.append(length)
        return backend(graph, inputs)

    run = torch.compile(function, backend=counting, dynamic=True)
    for inputs in calls(function):
        length = inputs[0].shape[-2]
        check(run(*inputs), inputs)
    return seen


@pytest.mark.slow
@pytest.mark.parametrize("function", [full, causal, window, library, grouped], ids=lambda f: f.__name__)
def test_one_compilation_serves_twenty_lengths(function):
    def right(got, inputs):
        torch.testing.assert_close(got.double(), function(*(t.double() for t in inputs)), atol=5e-6, rtol=0)

    backend = lambda graph, inputs: onepass_backend(graph, inputs, options={"inner": "eager", "strict": True})
    ours = compiled(function, backend, right)
    assert ours == [7, 1]
    assert ours == compiled(function, lambda graph, inputs: graph.forward, right)


def attention_of(width: int, length: int):
    generator = torch.Generator().manual_seed(length)
    return [torch.randn(2, 4, length, width, generator=generator) for _ in range(3)]


def plans():
    return [known.found.plan for known in operator._RUNNERS.values()]


@pytest.mark.slow
def test_a_symbolic_width_is_one_kernel_and_no_matrix_of_scores():
    process_state.forget("runners", "regions")
    torch._dynamo.reset()
    run = torch.compile(full, backend=onepass_backend, dynamic=True, options={"inner": "eager", "strict": True})
    for length in (48, 31, 65):
        inputs = attention_of(16, length)
        torch.testing.assert_close(run(*inputs), full(*inputs), atol=1e-5, rtol=0)
    [plan] = plans()
    assert len(plan.kernels) == 1 and {d.size for d in plan.kernels[0].held} == {16}
    inputs = attention_of(24, 48)
    torch.testing.assert_close(run(*inputs), full(*inputs), atol=1e-5, rtol=0)


def test_a_width_that_has_to_stay_dynamic_does():
    torch._dynamo.reset()
    run = torch.compile(full, backend=onepass_backend, options={"inner": "eager", "strict": True})
    for width in (16, 24):
        inputs = attention_of(width, 48)
        for tensor in inputs:
            torch._dynamo.mark_dynamic(tensor, 3)
        torch.testing.assert_close(run(*inputs), full(*inputs), atol=1e-5, rtol=0)

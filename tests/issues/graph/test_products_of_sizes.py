"""`math.prod` of symbolic sizes is in Dynamo's graphs, has the name of a reduction, and reduces no tensor.

Where a product's operand had such a size, the question which reduction stands before it failed, and with it the graph.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

import onepass


def _attention_and_scores(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    pairs = math.prod([q.shape[0], q.shape[1]])
    scores = torch.bmm(q.reshape(pairs, *q.shape[2:]), k.reshape(pairs, *k.shape[2:]).mT)
    return (q @ k.mT).softmax(-1) @ v, scores


def test_attention_beside_a_product_of_so_many_matrices_is_fused() -> None:
    torch._dynamo.reset()
    options = {"executor": "tiled", "libraries": False, "inner": "eager", "strict": True}
    compiled = torch.compile(_attention_and_scores, backend="onepass", dynamic=True, options=options)
    for batch in (2, 5):
        q = torch.randn(batch, batch + 1, 5, 4, dtype=torch.float64)
        k, v = torch.randn(2, batch, batch + 1, 7, 4, dtype=torch.float64)
        found, expected = compiled(q, k, v), _attention_and_scores(q, k, v)
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    assert onepass.reports()[-1].fused == 1

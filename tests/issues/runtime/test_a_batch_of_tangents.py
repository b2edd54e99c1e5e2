"""`jacobian(..., vectorize=True, strategy="forward-mode")` hides a batch of tangents in dual numbers that are plain.

The tangents' operation was then called below the batch, and read the address of a tensor that has no memory.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd.functional import jacobian


def _attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT).softmax(-1) @ v


def test_a_vectorized_jacobian_in_forward_mode() -> None:
    torch._dynamo.reset()
    options = {"executor": "tiled", "libraries": False, "inner": "eager"}
    compiled = torch.compile(_attention, backend="onepass", options=options)
    q, k, v = torch.randn(3, 2, 5, 4, dtype=torch.float64)
    found, expected = (
        jacobian(lambda x, call=call: call(q, x, v), k, vectorize=True, strategy="forward-mode")
        for call in (compiled, _attention)
    )
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)

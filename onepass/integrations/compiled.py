"""A function of tensors that is compiled once for each variant, with sizes that may change from call to call.

Inside of a function that is compiled already it is inlined, so that the caller's backend takes it. A variant is a
constant of its graphs, not an input. Example: `CompiledAttention({"inner": "eager"})(variant, q, k, v)`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from ..api.backend import onepass_backend
from ..api.compile import isolated
from .attention import AttentionVariant, attend

LENGTH_DIMS = {"query": (0, 2), "key": (0, 2), "value": (0, 2), "mask": (0, 2, 3), "bias": (0, 2, 3)}
MOST_GRAPHS = 64  # of a variant: with and without mask, bias and gradients, one row or several, dtypes


class CompiledAttention:
    """Calls `attend`, compiled by onepass with these options. Raises OptionError for bad options when it is made."""

    def __init__(self, options: Mapping[str, object] | None = None):
        self.backend = onepass_backend(options=options)
        self._compiled: dict[AttentionVariant, Callable] = {}

    def __call__(self, variant: AttentionVariant, **tensors: torch.Tensor | None) -> torch.Tensor:
        """The result of `attend(**tensors, variant=variant)`, whose shapes and errors are those of `attend`."""
        if torch.compiler.is_compiling():
            return attend(**tensors, variant=variant)
        for name, dims in LENGTH_DIMS.items():
            if (tensor := tensors.get(name)) is not None:
                torch._dynamo.maybe_mark_dynamic(tensor, [dim for dim in dims if dim < tensor.ndim])
        return self._for(variant)(**tensors)

    def _for(self, variant: AttentionVariant) -> Callable:
        found = self._compiled.get(variant)
        if found is None:
            found = torch.compile(_with(variant), backend=self.backend, **isolated(MOST_GRAPHS))
            self._compiled[variant] = found
        return found


def _with(variant: AttentionVariant) -> Callable:
    def attention(query, key, value, mask=None, bias=None, sinks=None):
        return attend(query, key, value, mask, bias, sinks, variant=variant)

    return attention

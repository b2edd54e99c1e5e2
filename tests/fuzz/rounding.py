"""Rounding as noise: how far results may move when every operation rounds, and what it read is computed again.

Each tensor has a size, which is what its last place is counted of: of a sum that of its terms, of an exponential its
exponent's, too. Wherever a tensor is read it is off by a random part of that last place, anew each time, as a score is
that one kernel computes and another computes again. Example: exp(s - max(s)) is near 1 and not 1 for the largest s.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch._decomp import decomposition_table
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map_only, tree_unflatten
from torch.utils.weak import WeakTensorKeyDictionary

ATEN = torch.ops.aten
Size = Callable[[torch.Tensor], torch.Tensor]
# Operations that are opened, as what they compute inside rounds, too.
OPENED = [ATEN._softmax.default, ATEN._log_softmax.default]
OPENED += [ATEN._softmax_backward_data.default, ATEN._log_softmax_backward_data.default]
# Operations that hand on elements, or compare them: they read no rounded number. Then the size is handed on.
EXACT = {"amax", "amin", "max", "min", "maximum", "minimum", "where", "cat", "stack", "clone", "sort", "relu", "clamp"}
EXACT |= {"masked_fill", "index", "index_select", "gather", "_to_copy", "topk", "roll", "flip", "embedding", "tril"}
EXACT |= {"constant_pad_nd", "threshold_backward", "copy", "triu", "_unsafe_view", "_reshape_alias", "neg", "abs"}
VIEWS = {"view", "_unsafe_view"}  # not of a size, whose strides may be others
COMPARED = {"eq", "ne", "lt", "le", "gt", "ge", "isnan", "isinf", "sign", "argmax", "floor", "round"}
SUMS = {"mm", "bmm", "addmm", "baddbmm", "mv", "dot", "sum", "mean", "cumsum"}
ADDED = {"add", "sub", "rsub", "lerp"}
OF_A_MASK = 1e30  # a number as large hides a score and rounds to itself: of a row's maximum, it is not the size
EXPONENTIAL = {"exp", "exp2"}


class ConstantMaxima(TorchFunctionMode):
    """No gradient goes through a largest element."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        if getattr(func, "__name__", "") not in ("amax", "max"):
            return found
        return tree_map_only(torch.Tensor, torch.Tensor.detach, found)


class Rounding(TorchDispatchMode):
    """Operations read numbers that are off by a random part of `last` of their size."""

    def __init__(self, last: float, seed: int):
        super().__init__()
        self.last, self.random = last, torch.Generator().manual_seed(seed)
        self.sizes = WeakTensorKeyDictionary()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func in OPENED:
            with self:
                return decomposition_table[func](*args, **kwargs)
        name = func.overloadpacket.__name__
        is_view = any(result.alias_info for result in func._schema.returns)
        if name in COMPARED or (is_view and func._schema.is_mutable):
            return func(*args, **kwargs)
        hands_on = is_view or name in EXACT
        given = args if hands_on else tree_map_only(torch.Tensor, self._read, args)
        found = func(*given, **kwargs)
        if isinstance(found, torch.Tensor) and found.is_floating_point() and not any(found is a for a in args):
            self.sizes[found] = self._size_of(func, name, hands_on, found, args, kwargs).abs()
        return found

    def _size_of(self, func, name: str, hands_on: bool, found, args, kwargs) -> torch.Tensor:
        """The size of a result."""
        if name in VIEWS:
            return self._size(args[0]).reshape(found.shape)
        if hands_on:
            return func(*tree_map_only(torch.Tensor, self._size, args), **kwargs)
        if name in SUMS:
            return sum(func(*given, **kwargs) for given in self._one_by_one(args))
        numbers = [a for a in args[:2] if isinstance(a, torch.Tensor | float | int)]
        if name in ADDED:
            return sum(map(self._size, numbers), torch.zeros_like(found))
        if name == "mul" and len(numbers) == 2:
            one, other = numbers
            return self._size(one) * _magnitude(other) + _magnitude(one) * self._size(other)
        if name == "div" and len(numbers) == 2:
            one, other = numbers
            return (self._size(one) + found.abs() * self._size(other)) / _magnitude(other)
        if name == "pow" and isinstance(args[1], float | int):
            return found.abs() + abs(args[1]) * args[0].abs() ** (args[1] - 1) * self._size(args[0])
        return found.abs() * (1 + self._size(args[0])) if name in EXPONENTIAL else found.abs()

    def _one_by_one(self, args):
        """The arguments with magnitudes, and the size of one tensor at a time."""
        flat, spec = tree_flatten(args)
        places = [k for k, x in enumerate(flat) if isinstance(x, torch.Tensor) and x.is_floating_point()]
        for place in places:
            yield tree_unflatten(
                [self._size(x) if k == place else x.abs() if k in places else x for k, x in enumerate(flat)], spec
            )

    def _size(self, x):
        size = self.sizes.get(x) if isinstance(x, torch.Tensor) else None
        size = _magnitude(x) if size is None or size.shape != x.shape else size
        is_sized = isinstance(size, torch.Tensor) and size.is_floating_point()
        return size.where(size < OF_A_MASK, 0.0) if is_sized else size

    def _read(self, x: torch.Tensor) -> torch.Tensor:
        if not x.is_floating_point() or not x.numel():
            return x
        noise = torch.rand(x.shape, generator=self.random, dtype=x.dtype).to(x.device)
        return x + self._size(x) * (self.last * (2 * noise - 1))


def _magnitude(x):
    return x if isinstance(x, torch.Tensor) and not x.is_floating_point() else abs(x)

"""The current device of prepared launches, and the tensors that they make at each call.

A small call takes the host longer than the GPU, so both are done with few calls of torch.
Invariant: kernels are launched, and memory is taken, where the tensors of the call are.
Example: `on_device(device, run)(tensors)` runs on `cuda:1` where the caller's current device is `cuda:0`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from .axis_order import Axes, turned_back


def on_device(device: torch.device, run: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """`run`, called with the device as the current one."""
    if device.type != "cuda":
        return run

    def there(tensors: Any) -> Any:
        if torch.cuda.current_device() == device.index:
            return run(tensors)
        with torch.cuda.device(device):
            return run(tensors)

    return there


def allocator(
    shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype, device: torch.device
) -> Callable[[], torch.Tensor]:
    """A function that makes tensors of this kind, without values. A GPU has to be the current device when it is called.

    The function is the one that Inductor's code calls. It takes half the time of `torch.empty_strided`.
    """
    quick = getattr(torch._C._dynamo.guards, "_empty_strided_cuda", None)
    if device.type == "cuda" and quick is not None:
        return partial(quick, tuple(shape), tuple(strides), dtype)
    return partial(torch.empty_strided, shape, strides, dtype=dtype, device=device)


def turned_allocator(
    shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype, device: torch.device, order: Axes | None
) -> Callable[[], torch.Tensor]:
    """The same for a result whose axes a plan has in another order. The tensor is made with its original axes, so it is
    not permuted after each call: a launch reads its address alone."""
    return allocator(turned_back(shape, order), turned_back(strides, order), dtype, device)

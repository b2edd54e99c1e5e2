"""What a prepared launch does on its device at each call: it makes that device the current one, and new tensors.

A small call takes the host longer than the GPU, so both take as few calls of torch as they can.
Invariant: kernels are launched, and memory is taken, where the tensors of the call are.
Example: `on_device(device, run)(tensors)` runs on `cuda:1` where the caller's current device is `cuda:0`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch


def on_device(device: torch.device, run: Callable[[Sequence[torch.Tensor]], Any]) -> Callable:
    """`run`, with the device as the current one."""
    if device.type != "cuda":
        return run

    def there(tensors: Sequence[torch.Tensor]) -> Any:
        if torch.cuda.current_device() == device.index:
            return run(tensors)
        with torch.cuda.device(device):
            return run(tensors)

    return there


def allocator(
    shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype, device: torch.device
) -> Callable[[], torch.Tensor]:
    """What makes tensors like this, without values. Of a GPU, that has to be the current device.

    Code that Inductor makes calls the same function, which takes half the time of `torch.empty_strided`.
    """
    quick = getattr(torch._C._dynamo.guards, "_empty_strided_cuda", None)
    if device.type == "cuda" and quick is not None:
        return partial(quick, tuple(shape), tuple(strides), dtype)
    return partial(torch.empty_strided, shape, strides, dtype=dtype, device=device)

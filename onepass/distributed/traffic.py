"""What a schedule moves and computes, and which one is estimated to take less time.

Example: 131072 tokens, 16 heads of 128, bfloat16, 2 ranks: a rank receives 512 MiB of keys and values in a ring and in
an all-gather alike, beside 70 TFLOP of products; the ring needs less memory, so it is taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from .shared_attention import Sides

LINK = 2.0e11  # bytes a second that one GPU receives from another of its host: an estimate for NVLink of Hopper
PRODUCTS = 5.0e14  # operations a second of a fused attention in half precision: an estimate for Hopper
START = 2.0e-5  # seconds of an exchange without any bytes
SHARE_OF_MEMORY = 8  # the keys of all ranks may take 1/8 of a GPU's memory


@dataclass(frozen=True)
class TrafficEstimate:
    """Of a forward: bytes that a rank receives and holds of others, and seconds until it is done."""

    received: int
    held: int
    seconds: float


def estimates(own_bytes: int, operations: float, ranks: int) -> dict[str, TrafficEstimate]:
    """Of each schedule. own_bytes: of a rank's keys and values. operations: of its queries with one rank's keys."""
    kernel, exchange = operations / PRODUCTS, own_bytes / LINK + START
    others = ranks - 1
    ring = others * max(kernel, exchange) + kernel
    gathered = max(kernel, others * own_bytes / LINK + START) + others * kernel
    return {
        "ring": TrafficEstimate(others * own_bytes, min(others, 1) * own_bytes, ring),
        "all-gather": TrafficEstimate(others * own_bytes, 2 * others * own_bytes, gathered),
    }


def chosen(tensors: Sequence[torch.Tensor], sides: Sides, ranks: int) -> str:
    """The schedule with the least estimated time among those whose keys fit; of equal ones, the one that holds less."""
    keys = [tensors[k] for k in sides.keys]
    own = sum(x.numel() * x.element_size() for x in keys)
    query = max((tensors[k] for k in sides.queries), key=torch.Tensor.numel)
    length = keys[0].shape[next(iter(sides.keys.values()))]
    found = estimates(own, 4.0 * query.numel() * length, ranks)
    room = _memory(keys[0].device) / SHARE_OF_MEMORY
    fitting = {n: e for n, e in found.items() if n == "ring" or e.held <= room}
    return min(fitting, key=lambda name: (round(fitting[name].seconds, 6), fitting[name].held))


def _memory(device: torch.device) -> float:
    return float(torch.cuda.get_device_properties(device).total_memory) if device.type == "cuda" else 1e10

"""What a schedule moves and computes, and which one is estimated to take less time.

Example: 131072 tokens, 16 heads of 128, bfloat16, 2 ranks: a rank receives 512 MiB of keys and values in a ring and in
an all-gather alike, beside 70 TFLOP of products; the ring needs less memory, so it is taken.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log2, prod

import torch

from .laws.head_law import Heads
from .pieces import MOST_AT_ONCE
from .schedules import SCHEDULES
from .shared_attention import Sides

LINK = 2.0e11  # bytes a second that one GPU receives from another of its host: an estimate for NVLink of Hopper
NETWORK = 4.0e10  # bytes a second that one GPU receives from another host: an estimate for a network card of each
PRODUCTS = 5.0e14  # operations a second of a fused attention in half precision: an estimate for Hopper
START = 2.0e-5  # seconds of an exchange without any bytes
SECONDS_OF_A_KERNEL = 2.0e-3  # of a piece, at least: it keeps all of a GPU busy, and hides its start and an exchange's
MOST_PIECES = 16
MOST_SENT_AGAIN = 0.25  # of the keys' bytes: what has no heads comes with each piece
SHARE_OF_MEMORY = 8  # what a rank holds of others may take 1/8 of a GPU's memory


@dataclass(frozen=True)
class TrafficEstimate:
    """Of a forward: bytes that a rank receives and holds of others, and seconds until it is done."""

    received: int
    held: int
    seconds: float


@dataclass(frozen=True)
class RankWork:
    """Of a rank: bytes of its keys and values, and operations of its queries with them.

    cut: bytes that an exchange of heads cuts, of arguments and of the result; None if heads cannot be exchanged. whole:
    bytes of arguments that every rank gets whole then, and of these, whole_keys.
    """

    keys: int
    operations: float
    cut: int | None = None
    whole: int = 0
    whole_keys: int = 0


def estimates(
    work: RankWork, sizes: Sequence[int], pieces: Mapping[str, int] | None = None
) -> dict[str, TrafficEstimate]:
    """Of each schedule. sizes: the number of ranks along each dim of the mesh, hosts first. pieces: of heads, or 1."""
    count, between = pieces or {}, NETWORK if len(sizes) > 1 else LINK
    return {
        name: _estimate(work, dict(zip(roles, sizes, strict=True)), between, count.get(name, 1))
        for name, roles in SCHEDULES.items()
        if len(roles) == len(sizes) and ("heads" not in roles or work.cut is not None)
    }


def _estimate(work: RankWork, ranks: dict[str, int], between: float, pieces: int) -> TrafficEstimate:
    """ranks: the number of those that do each of the three things. between: bytes a second round the ring."""
    ring, gather, heads = (ranks.get(role, 1) for role in ("ring", "gather", "heads"))
    keys, kernel = work.keys + (heads - 1) * work.whole_keys, heads * work.operations / PRODUCTS
    inside, passed = (gather - 1) * keys, (ring - 1) * keys
    host = max(kernel, inside / LINK + START) + (gather - 1) * kernel if gather > 1 else kernel
    seconds = (ring - 1) * max(host, keys / between + START) + host
    received, held = passed + ring * inside, min(ring - 1, 2) * keys + 2 * inside
    if heads > 1:
        there = work.cut // heads * (heads - 1) + (heads - 1) * work.whole
        received, held = received + there, held + min(pieces, MOST_AT_ONCE) * (work.cut + heads * work.whole)
        seconds += there / LINK / pieces + 2 * START  # the first one's way there, and the last one's home
    return TrafficEstimate(received, held // pieces, seconds)


def most_pieces(work: RankWork, sizes: Sequence[int], schedule: str) -> int:
    """Of how many each kernel takes long enough: a power of 2. sizes: the number of ranks along each dim."""
    ranks = dict(zip(SCHEDULES[schedule], sizes, strict=True))
    kernels = ranks.get("ring", 1) * min(ranks.get("gather", 1), 2)
    seconds = work.operations * prod(sizes) / PRODUCTS / kernels
    if prod(sizes) == 1 or seconds < 2 * SECONDS_OF_A_KERNEL:
        return 1
    return min(MOST_PIECES, 1 << int(log2(seconds / SECONDS_OF_A_KERNEL)))


def is_worth(work: RankWork, pieces: int) -> bool:
    """Whether little of what is sent has no heads."""
    return work.whole_keys * (pieces - 1) <= MOST_SENT_AGAIN * work.keys


def work_of(tensors: Sequence[torch.Tensor], sides: Sides, lengths: tuple[int, int], heads: Heads | None) -> RankWork:
    """The work of a rank with these numbers of queries and keys. heads: what an exchange cuts; None if it cannot."""
    sizes: dict[int, int] = {}
    for axes, length in zip((sides.queries, sides.keys), lengths, strict=True):
        for number, axis in axes.items():
            x = tensors[number]
            others = prod(n for place, n in enumerate(x.shape) if place != axis)  # of an empty part, too
            sizes[number] = others * length * x.element_size()
    query = max(sides.queries, key=lambda k: sizes[k])
    keys, result = sum(sizes[k] for k in sides.keys), sizes[query]
    operations = 4.0 * result / tensors[query].element_size() * lengths[1]
    if heads is None:
        return RankWork(keys, operations)
    whole = {k: n for k, n in sizes.items() if k not in heads.axes}
    cut = sum(sizes.values()) - sum(whole.values()) + result
    return RankWork(keys, operations, cut, sum(whole.values()), sum(n for k, n in whole.items() if k in sides.keys))


def chosen(
    work: RankWork, sizes: Sequence[int], device: torch.device, pieces: Mapping[str, int] | None = None
) -> str:
    """The schedule with the least estimated time among those that fit; of equal ones, the one that holds less."""
    found = estimates(work, sizes, pieces)
    room, least = _memory(device) / SHARE_OF_MEMORY, min(e.held for e in found.values())
    fitting = {n: e for n, e in found.items() if e.held <= max(room, least)}
    return min(fitting, key=lambda name: (round(fitting[name].seconds, 6), fitting[name].held))


def _memory(device: torch.device) -> float:
    return float(torch.cuda.get_device_properties(device).total_memory) if device.type == "cuda" else 1e10

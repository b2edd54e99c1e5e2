"""Decoding from a paged cache on one GPU: pages read in the kernel, copied in front of it, contiguous keys, and others.

`python bench/paged_decode.py --out results.csv [--lengths skewed "as many, even"]`. Each sequence has its own pages, in
random order over the cache. A table's last entries are behind the length of its sequence. Results are compared with
float64. Milliseconds are medians with a cold L2 cache; GB/s count the keys and values of all lengths once, and nothing
else. FlashInfer takes part where it is installed.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
import torch.nn.functional as F
from torch import Tensor

import onepass
from bench import flashinfer_peer
from onepass.bench.results import write_rows
from onepass.bench.timing import Call, ContestantResult, in_turns, said

SEQUENCES, HEADS, KEY_HEADS, WIDTH = 32, 32, 8, 128
KEYS = 3500  # of a sequence on average
PAGES_OF_SLOTS = (16, 64, 256)
ROUNDS = 5
CHECKED = 2  # sequences that are compared with float64
ZIPF = [max(64, 65536 // (n + 1)) for n in range(SEQUENCES)]
LENGTHS = {  # of the sequences; even ones have as many keys together as the skewed ones above them
    "random": None,
    "skewed": [65536] + [1024] * (SEQUENCES - 1),
    "as many, even": [(65536 + 1024 * (SEQUENCES - 1)) // SEQUENCES] * SEQUENCES,
    "zipf": ZIPF,
    "as many as zipf, even": [sum(ZIPF) // SEQUENCES] * SEQUENCES,
}
FIELDS = ("contestant", "lengths", "slots", "milliseconds", "gigabytes_per_second", "error", "where")


def kept(lengths: Tensor, keys: int) -> Tensor:
    return torch.arange(keys, device=lengths.device) < lengths[:, None, None, None]


def attend(q: Tensor, k: Tensor, v: Tensor, lengths: Tensor) -> Tensor:
    """Attention of one query of each sequence; heads of keys are shared by heads of queries."""
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    scores = (q @ k.mT * q.shape[-1] ** -0.5).masked_fill(~kept(lengths, k.shape[2]), -math.inf)
    return scores.softmax(-1) @ v


def paged(q: Tensor, kc: Tensor, vc: Tensor, table: Tensor, lengths: Tensor) -> Tensor:
    """Attention to the pages that a table names."""
    return attend(q, *(c[table].flatten(1, 2).transpose(1, 2) for c in (kc, vc)), lengths)


def paged_sdpa(q: Tensor, kc: Tensor, vc: Tensor, table: Tensor, lengths: Tensor) -> Tensor:
    """The same by torch's attention, which reads a copy of the pages."""
    k, v = (c[table].flatten(1, 2).transpose(1, 2) for c in (kc, vc))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=kept(lengths, k.shape[2]), enable_gqa=True)


@dataclass(frozen=True)
class Contestant:
    """A program of a paged or a contiguous cache, and how it is compiled: a backend and its options, or not at all.

    planned: the function makes a call of its own for these tensors.
    """

    name: str
    function: Callable
    backend: Callable | str | None = None
    options: dict | None = None
    contiguous: bool = False
    planned: bool = False


CONTESTANTS = (
    Contestant("onepass, pages", paged, onepass.onepass_backend),
    Contestant("onepass, copied pages", paged, onepass.onepass_backend, {"fuse_loads": "never"}),
    Contestant("onepass, contiguous", attend, onepass.onepass_backend, contiguous=True),
    Contestant("torch.compile", paged, "inductor"),
    Contestant("torch.compile, sdpa", paged_sdpa, "inductor"),
    Contestant("eager, sdpa", paged_sdpa),
)
if flashinfer_peer.available():
    CONTESTANTS += (
        Contestant("FlashInfer", flashinfer_peer.decode, planned=True),
        Contestant("FlashInfer, no tensor cores", partial(flashinfer_peer.decode, tensor_cores=False), planned=True),
    )


@dataclass(frozen=True)
class Cache:
    """Tensors of a paged cache, and the same keys and values as contiguous ones."""

    paged: tuple[Tensor, ...]
    contiguous: tuple[Tensor, ...]
    bytes: int

    @classmethod
    def random(cls, slots: int, kind: torch.dtype, device: str, name: str = "random") -> Cache:
        """name: of the lengths. A row of the table has room for the longest sequence."""
        lengths = torch.randint(KEYS * 7 // 8, KEYS * 9 // 8, (SEQUENCES,), device=device)
        if (given := LENGTHS[name]) is not None:
            lengths = torch.tensor(given, device=device)
        row = -(-int(lengths.max()) // slots)
        used = torch.arange(row, device=device) * slots < lengths[:, None]
        pages = int(used.sum())
        table = torch.zeros(SEQUENCES, row, dtype=torch.long, device=device)
        table[used] = torch.randperm(pages, device=device)
        q = torch.randn(SEQUENCES, HEADS, 1, WIDTH, device=device, dtype=kind)
        kc, vc = (torch.randn(pages, slots, KEY_HEADS, WIDTH, device=device, dtype=kind) for _ in range(2))
        k, v = (c[table].flatten(1, 2).transpose(1, 2).contiguous() for c in (kc, vc))
        read = 2 * int(lengths.sum()) * KEY_HEADS * WIDTH * q.element_size()
        return cls((q, kc, vc, table, lengths), (q, k, v, lengths), read)

    def given(self, contestant: Contestant) -> tuple[Tensor, ...]:
        return self.contiguous if contestant.contiguous else self.paged

    def right(self) -> Tensor:
        """What float64 gives for the first sequences."""
        q, k, v, lengths = (x[:CHECKED] for x in self.contiguous)
        return attend(q.double(), k.double(), v.double(), lengths)


def compiled(contestant: Contestant, given: tuple[Tensor, ...]) -> Call:
    made = contestant.function
    if contestant.planned:
        return made(*given)
    if contestant.backend is not None:
        made = torch.compile(made, backend=contestant.backend, options=contestant.options, dynamic=False)
    for _ in range(3):
        made(*given)
    return lambda: made(*given)


def captured(call: Call) -> Call:
    """The call as a graph of CUDA, which takes no time on the host. It keeps the call, whose buffers it may read."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = call()

    def replay(kept: Call = call) -> Tensor:
        graph.replay()
        return result

    return replay


def measured(slots: int, lengths: str) -> list[dict[str, object]]:
    """A row for each contestant, called as it is and captured. A contestant that fails has the reason in its row."""
    torch._dynamo.reset()
    cache = Cache.random(slots, torch.bfloat16, "cuda", lengths)
    right, failed, calls, wrong = cache.right(), {}, {}, {}
    for contestant in CONTESTANTS:
        for key in _keys(contestant):
            try:
                call = calls.get(contestant.name) or compiled(contestant, cache.given(contestant))
                calls[key] = captured(call) if key != contestant.name else call
                wrong[key] = float((calls[key]()[:CHECKED].double() - right).abs().max())
            except Exception as error:
                calls.pop(key, None)
                failed[key] = said(error)
    times = in_turns(calls, ROUNDS, dict.fromkeys(calls, ContestantResult()))
    rows = []
    for key in (key for contestant in CONTESTANTS for key in _keys(contestant)):
        if taken := times.get(key):
            milliseconds = statistics.median(taken)
            rows.append(_row((key, lengths, slots), milliseconds, cache.bytes / milliseconds / 1e6, wrong[key]))
        else:
            rows.append(_row((key, lengths, slots), where=failed.get(key, "failed while it was measured")))
    return rows


def _keys(contestant: Contestant) -> tuple[str, str]:
    return contestant.name, f"{contestant.name}, captured"


def _row(names: tuple[str, str, int], *numbers: float, where: str = "") -> dict[str, object]:
    return dict(zip(FIELDS, (*names, *numbers))) | {"where": where or torch.cuda.get_device_name()}


def explained(slots: int) -> str:
    """What onepass says of the paged program."""
    given = Cache.random(slots, torch.bfloat16, "cuda").paged
    return str(onepass.explain(paged, *given))


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="a file for the rows, as comma-separated values")
    parser.add_argument("--slots", type=int, nargs="*", default=PAGES_OF_SLOTS, help="slots of a page")
    parser.add_argument("--lengths", nargs="*", choices=LENGTHS, default=["random"], help="of the sequences")
    parser.add_argument("--explain", action="store_true", help="print what onepass says of the paged program first")
    asked = parser.parse_args()
    torch.manual_seed(0)
    if asked.explain:
        print(explained(asked.slots[0]), flush=True)
    rows = []
    print(f"{'':32} lengths, slots, milliseconds, GB/s, largest error")
    for lengths, slots in product(asked.lengths, asked.slots):
        for row in measured(slots, lengths):
            rows.append(row)
            numbers = [f"{row[n]:9.4g}" for n in FIELDS[3:6] if n in row] or [row["where"]]
            print(f"{row['contestant']:32} {lengths:22} {slots:4}", *numbers, sep="  ", flush=True)
    if asked.out:
        write_rows(asked.out, FIELDS, rows)


if __name__ == "__main__":
    main()

"""New tokens of sequences in a paged cache on one GPU, causal: pages read in the kernel, and contiguous keys.

`python bench/paged_prefill.py --out results.csv [--slots 16 64] [--only "D 64"]`. Each sequence has its own pages, in
random order over the cache. A table's last entries are behind the length of its sequence. Results are compared with
float64. Milliseconds are medians of captured calls with a cold L2 cache; TFLOP/s count the scores that the mask keeps.
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
from paged_decode import Contestant, captured, compiled
from torch import Tensor

import onepass
from onepass.bench.results import write_rows
from onepass.bench.timing import ContestantResult, in_turns, said

PAGES_OF_SLOTS = (16, 32, 64, 128)
KIND, ROUNDS, CHECKED = torch.bfloat16, 5, 256  # rows of the first sequence that are compared with float64
FIELDS = ("case", "contestant", "slots", "milliseconds", "tflops", "error", "where")


@dataclass(frozen=True)
class Case:
    """New tokens of each sequence, whose lengths are between half and all of `keys` unless they are said to be even."""

    sequences: int
    tokens: int
    keys: int
    heads: int = 32
    key_heads: int = 8
    width: int = 128
    even: bool = False
    packed: bool = False

    @property
    def name(self) -> str:
        """The sizes."""
        heads = f"{self.heads} heads on {self.key_heads}, D {self.width}"
        kind = "packed, " if self.packed else ""
        return f"{kind}{self.sequences} x {self.tokens} of {'' if self.even else 'up to '}{self.keys}, {heads}"


CASES = (
    Case(4, 512, 4096),
    Case(1, 4096, 16384),
    Case(2, 2048, 2048, even=True),
    Case(8, 256, 8192, width=64),
    Case(4, 512, 4096, 16, 2, 256),
    Case(8, 512, 4096, packed=True),
)


def attend(q: Tensor, k: Tensor, v: Tensor, lengths: Tensor) -> Tensor:
    """Causal attention; the last query of a sequence stands at its last key."""
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    i, j = (torch.arange(n, device=q.device) for n in (q.shape[2], k.shape[2]))
    keep = j <= i[:, None] + (lengths - q.shape[2])[:, None, None, None]
    return (q @ k.mT * q.shape[-1] ** -0.5).masked_fill(~keep, -math.inf).softmax(-1) @ v


def paged(q: Tensor, kc: Tensor, vc: Tensor, table: Tensor, lengths: Tensor) -> Tensor:
    """The same for keys and values in pages that a table names."""
    return attend(q, *(c[table].flatten(1, 2).transpose(1, 2) for c in (kc, vc)), lengths)


def packed(q: Tensor, kc: Tensor, vc: Tensor, table: Tensor, lengths: Tensor, starts: Tensor, rows: int) -> Tensor:
    """Sequence b has the tokens of q from starts[b] to starts[b + 1], at most `rows`. Rows behind them are zero."""
    k, v = (c[table].flatten(1, 2).transpose(1, 2).repeat_interleave(q.shape[1] // c.shape[2], 1) for c in (kc, vc))
    i, own = torch.arange(rows, device=q.device), starts[1:] - starts[:-1]
    q = q[(starts[:-1, None] + i).clamp(max=q.shape[0] - 1)].transpose(1, 2)
    age = ((lengths - own)[:, None] + i)[:, :, None] - torch.arange(k.shape[2], device=q.device)
    keep = ((age >= 0) & (i < own[:, None])[:, :, None])[:, None]
    return (q @ k.mT * q.shape[-1] ** -0.5).masked_fill(~keep, -math.inf).softmax(-1).nan_to_num(0) @ v


def paged_sdpa(q: Tensor, kc: Tensor, vc: Tensor, table: Tensor, lengths: Tensor) -> Tensor:
    """The same by torch's attention, which reads a copy of the pages."""
    k, v = (c[table].flatten(1, 2).transpose(1, 2) for c in (kc, vc))
    i, j = (torch.arange(n, device=q.device) for n in (q.shape[2], k.shape[2]))
    keep = j <= i[:, None] + (lengths - q.shape[2])[:, None, None, None]
    return F.scaled_dot_product_attention(q, k, v, attn_mask=keep, enable_gqa=True)


CONTESTANTS = (
    Contestant("onepass, pages", paged, onepass.onepass_backend),
    Contestant("onepass, contiguous", attend, onepass.onepass_backend, contiguous=True),
    Contestant("torch.compile, sdpa", paged_sdpa, "inductor"),
)
OF_PACKED = (
    Contestant("onepass, packed", packed, onepass.onepass_backend),
    Contestant("onepass, Triton", packed, onepass.onepass_backend, {"executor": "triton"}),
    Contestant("torch.compile", packed, "inductor"),
)


def inputs(case: Case, slots: int) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Tensors of a paged cache, and the same keys and values as contiguous ones."""
    least = case.keys if case.even else max(case.tokens, case.keys // 2)
    lengths = torch.randint(least, case.keys + 1, (case.sequences,), device="cuda")
    used = torch.arange(case.keys // slots, device="cuda") * slots < lengths[:, None]
    table = torch.zeros(used.shape, dtype=torch.long, device="cuda")
    table[used] = torch.randperm(int(used.sum()), device="cuda")
    random = partial(torch.randn, device="cuda", dtype=KIND)
    q = random(case.sequences, case.heads, case.tokens, case.width)
    kc, vc = (random(int(used.sum()), slots, case.key_heads, case.width) for _ in range(2))
    k, v = (c[table].flatten(1, 2).transpose(1, 2).contiguous() for c in (kc, vc))
    if case.packed:
        own = torch.randint(1, case.tokens + 1, (case.sequences,), device="cuda")
        starts = torch.cat([own.new_zeros(1), own.cumsum(0)])
        q = random(int(starts[-1]), case.heads, case.width)
        return (q, kc, vc, table, lengths, starts, case.tokens), (q, k, v, lengths)
    return (q, kc, vc, table, lengths), (q, k, v, lengths)


def operations(case: Case, given: tuple) -> float:
    """Of both products, for the scores that the mask keeps."""
    lengths = given[4].double()
    own = given[5].diff() if case.packed else torch.full_like(lengths, case.tokens)
    kept = (lengths - own) * own + own * (own + 1) / 2
    return float(kept.sum()) * 4 * case.heads * case.width


def measured(case: Case, slots: int) -> list[dict[str, object]]:
    """A row for each contestant. A contestant that fails has the reason in its row."""
    torch._dynamo.reset()
    given, contiguous = inputs(case, slots)
    contestants, first = OF_PACKED if case.packed else CONTESTANTS, [x[:1] for x in contiguous]
    own = case.tokens
    if case.packed:
        own = int(given[5][1])
        first[0] = given[0][:own].transpose(0, 1)[None]
    right = attend(*(x.double() if x.is_floating_point() else x for x in first))[:, :, -CHECKED:]
    last = slice(max(0, own - CHECKED), own)
    calls: dict[str, Callable] = {}
    wrong, failed = {}, {}
    for contestant in contestants:
        try:
            call = compiled(contestant, contiguous if contestant.contiguous else given)
            calls[contestant.name] = captured(call)
            wrong[contestant.name] = float((calls[contestant.name]()[:1, :, last].double() - right).abs().max())
        except Exception as error:
            calls.pop(contestant.name, None)
            failed[contestant.name] = said(error)
    times = in_turns(calls, ROUNDS, dict.fromkeys(calls, ContestantResult()))
    rows = []
    for name in (contestant.name for contestant in contestants):
        row: dict[str, object] = {"case": case.name, "contestant": name, "slots": slots}
        if taken := times.get(name):
            milliseconds = statistics.median(taken)
            row |= {"milliseconds": milliseconds, "tflops": operations(case, given) / milliseconds / 1e9}
            row |= {"error": wrong[name], "where": torch.cuda.get_device_name()}
        rows.append(row if taken else row | {"where": failed.get(name, "failed while it was measured")})
    return rows


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="a file for the rows, as comma-separated values")
    parser.add_argument("--slots", type=int, nargs="*", default=PAGES_OF_SLOTS, help="slots of a page")
    parser.add_argument("--only", default="", help="cases that have this text in their names")
    asked = parser.parse_args()
    torch.manual_seed(0)
    rows = []
    for case, slots in product((case for case in CASES if asked.only in case.name), asked.slots):
        for row in measured(case, slots):
            rows.append(row)
            numbers = [f"{row[n]:9.4g}" for n in FIELDS[3:6] if n in row] or [row["where"]]
            print(f"{row['case']:44} {row['contestant']:20} {slots:4}", *numbers, sep="  ", flush=True)
    if asked.out:
        write_rows(asked.out, FIELDS, rows)


if __name__ == "__main__":
    main()

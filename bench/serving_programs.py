"""Decoding programs of a server on one GPU, in plain PyTorch: how near each is to the speed of a copy.

`python bench/serving_programs.py --out results.csv [--programs pages "int8 pages"]`. Each program is captured as a
graph of CUDA. Milliseconds are medians with a cold L2 cache. Bytes are what has to be read: keys and values of all
lengths, as they are stored. "of copy": bytes per second beside a copy of 1 GiB, read and written. "of read": the time
in which torch finds the largest of as many bytes, beside the program's, with the same cache. First sequences are
compared with float64. FlashInfer runs "pages" and "latents" too, where it is installed.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from torch import Tensor

import onepass
from bench import flashinfer_peer
from bench.paged_decode import CHECKED, captured
from onepass.bench.results import write_rows
from onepass.bench.timing import Call, ContestantResult, in_turns, said

SEQUENCES, HEADS, KEY_HEADS, WIDTH, KEYS, SLOTS = 32, 32, 8, 128, 4096, 64
LATENT, ROTATED = 512, 64
ROUNDS = 3
FIELDS = (
    "program", "milliseconds", "gigabytes", "terabytes_per_second", "of_copy", "of_read", "teraflops", "error", "how",
    "where",
)  # fmt: skip


@dataclass(frozen=True)
class Program:
    """A function and its tensors. batched: which of them have an axis of sequences in front; bytes: what is read.

    peer: makes a call of FlashInfer's that does the same.
    """

    function: Callable[..., Tensor]
    given: tuple[Tensor, ...]
    batched: tuple[bool, ...]
    bytes: int
    flops: int = 0
    peer: Callable[[], Call] | None = None

    def right(self) -> Tensor:
        """What float64 gives for the first sequences."""
        first = [x[:CHECKED] if batched else x for x, batched in zip(self.given, self.batched, strict=True)]
        wide = lambda x: x.double() if (x.dtype == torch.bfloat16 and x.dim() != 4) or x is first[0] else x
        return self.function(*map(wide, first))


# Programs -------------------------------------------------------------------------------------------------------------


def attend(q: Tensor, k: Tensor, v: Tensor, keep: Tensor, change: Callable[[Tensor], Tensor] = lambda s: s) -> Tensor:
    k, v = (x.to(q.dtype).repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    return change(q @ k.mT * WIDTH**-0.5).masked_fill(~keep, -math.inf).softmax(-1) @ v


def pages_of(c: Tensor, table: Tensor) -> Tensor:
    return c[table].flatten(1, 2).transpose(1, 2)


def kept(q: Tensor, lengths: Tensor, keys: int) -> Tensor:
    """Which keys a query sees: the last query of a sequence stands at its last key."""
    i, j = torch.arange(q.shape[2], device=q.device), torch.arange(keys, device=q.device)
    return j <= (lengths[:, None] - q.shape[2] + i)[:, None, :, None]


def paged(q, kc, vc, table, lengths):
    k, v = (pages_of(c, table) for c in (kc, vc))
    return attend(q, k, v, kept(q, lengths, k.shape[2]))


def scaled_pages(q, kc, vc, table, lengths, scales):
    """Scales of keys and of values for each head, [2, heads of keys, 1, 1]."""
    k, v = (pages_of(c, table).to(q.dtype) * s.to(q.dtype) for c, s in zip((kc, vc), scales))
    return attend(q, k, v, kept(q, lengths, k.shape[2]))


def packed_pages(q, kc, vc, table, lengths, scales):
    """Two numbers of four bits in a byte."""
    unpacked = lambda c: torch.stack([c & 15, c >> 4], -1).flatten(-2).to(q.dtype) - 8
    k, v = (pages_of(unpacked(c), table) * s.to(q.dtype) for c, s in zip((kc, vc), scales))
    return attend(q, k, v, kept(q, lengths, k.shape[2]))


def window_and_sinks(q, kc, vc, table, lengths, sinks):
    """A window of 2048, a softcap of 50, and a learned sink for each head."""
    k, v = (pages_of(c, table).repeat_interleave(HEADS // KEY_HEADS, 1) for c in (kc, vc))
    j = torch.arange(k.shape[2], device=q.device)
    keep = kept(q, lengths, k.shape[2]) & (j >= lengths[:, None, None, None] - 2048)
    scores = (50 * torch.tanh(q @ k.to(q.dtype).mT * WIDTH**-0.5 / 50)).masked_fill(~keep, -math.inf)
    sink = sinks.to(q.dtype)[None, :, None, None].expand(len(q), -1, q.shape[2], 1)
    return torch.cat([scores, sink], -1).softmax(-1)[..., :-1] @ v.to(q.dtype)


def picked(q, k, v, blocks):
    """Blocks of 64 keys that are chosen for each head of keys: only they are read."""
    b, g, n, d = k.shape
    at = torch.arange(b, device=q.device)[:, None, None], torch.arange(g, device=q.device)[:, None], blocks
    k, v = (x.view(b, g, n // 64, 64, d)[at].flatten(2, 3) for x in (k, v))
    return attend(q, k, v, torch.ones(k.shape[2], dtype=torch.bool, device=q.device))


def latent(a, rotated, c, keys):
    """Queries that were raised to the width of the latents. These are the values, too."""
    scores = torch.einsum("bhil,bjl->bhij", a, c.to(a.dtype))
    scores = scores + torch.einsum("bhir,bjr->bhij", rotated.to(a.dtype), keys.to(a.dtype))
    weights = (scores * (WIDTH + ROTATED) ** -0.5).softmax(-1)
    return torch.einsum("bhij,bjl->bhil", weights, c.to(a.dtype))


def absorbed(q, rotated, c, keys, wk, wv):
    """Latent attention with the products of its weights on either side."""
    out = latent(torch.einsum("bhin,hnl->bhil", q, wk), rotated, c, keys)
    return torch.einsum("bhil,hvl->bhiv", out, wv)


# Tensors --------------------------------------------------------------------------------------------------------------


def drawn(*shape: int) -> Tensor:
    return torch.randn(shape, device="cuda", dtype=torch.bfloat16)


def table_and_lengths() -> tuple[Tensor, Tensor]:
    pages = SEQUENCES * KEYS // SLOTS
    lengths = torch.randint(KEYS * 7 // 8, KEYS + 1, (SEQUENCES,), device="cuda")
    return torch.randperm(pages, device="cuda").view(SEQUENCES, -1), lengths


def of_pages(function, cache: Callable[..., Tensor], *more: Tensor, queries: int = 1, read: float = 1.0) -> Program:
    """cache: makes the keys, or the values, of this shape. read: the share of the keys that is read."""
    table, lengths = table_and_lengths()
    kc, vc = (cache(table.numel(), SLOTS, KEY_HEADS, WIDTH) for _ in range(2))
    row = kc[0, 0].numel() * kc.element_size()
    given = (drawn(SEQUENCES, HEADS, queries, WIDTH), kc, vc, table, lengths, *more)
    flops = 4 * HEADS * WIDTH * queries * int(lengths.sum())
    batched = (True, False, False, True, True, *(False for _ in more))
    peer = partial(flashinfer_peer.decode, *given) if function is paged and queries == 1 else None
    return Program(function, given, batched, int(2 * int(lengths.sum()) * row * read), flops, peer)


def whole_numbers(*shape: int) -> Tensor:
    return torch.randint(-128, 128, shape, device="cuda", dtype=torch.int8)


def scales() -> Tensor:
    return (torch.rand(2, KEY_HEADS, 1, 1, device="cuda") + 0.5).bfloat16() / 64


def packed(pages: int, slots: int, heads: int, width: int) -> Tensor:
    return torch.randint(0, 256, (pages, slots, heads, width // 2), device="cuda", dtype=torch.uint8)


def chosen_blocks() -> Program:
    k, v = (drawn(SEQUENCES, KEY_HEADS, 8 * KEYS, WIDTH) for _ in range(2))
    count = 8 * KEYS // 64
    blocks = torch.rand(SEQUENCES, KEY_HEADS, count, device="cuda").argsort(-1)[..., : count // 8].contiguous()
    given = (drawn(SEQUENCES, HEADS, 1, WIDTH), k, v, blocks)
    return Program(picked, given, (True,) * 4, 4 * blocks.numel() * 64 * WIDTH)


def one_latent(q: Tensor, c: Tensor) -> Tensor:
    """Keys of all numbers of a latent; its first ones are the values, too."""
    return (q @ c[:, None].mT * q.shape[-1] ** -0.5).softmax(-1) @ c[:, None, :, :LATENT]


def of_one_latent(heads: int) -> Program:
    width = LATENT + ROTATED
    q, c = drawn(SEQUENCES, heads, 1, width), drawn(SEQUENCES, KEYS, width)
    flops = 2 * SEQUENCES * heads * KEYS * (LATENT + width)
    return Program(one_latent, (q, c), (True, True), c.nbytes, flops)


def of_latents(function, heads: int) -> Program:
    c, keys, rotated = drawn(SEQUENCES, KEYS, LATENT), drawn(SEQUENCES, KEYS, ROTATED), drawn(SEQUENCES, heads, 1, 64)
    flops = 2 * SEQUENCES * heads * KEYS * (2 * LATENT + ROTATED)
    read = 2 * (c.numel() + keys.numel())
    if function is latent:
        given = (drawn(SEQUENCES, heads, 1, LATENT) / 8, rotated, c, keys)
        peer = partial(flashinfer_peer.decode_latents, *given, slots=SLOTS, scale=(WIDTH + ROTATED) ** -0.5)
        return Program(latent, given, (True,) * 4, read, flops, peer)
    made = [drawn(heads, WIDTH, LATENT) / 16 for _ in range(2)]
    given = (drawn(SEQUENCES, heads, 1, WIDTH), rotated, c, keys, *made)
    return Program(absorbed, given, (True,) * 4 + (False,) * 2, read, flops)


PROGRAMS: dict[str, Callable[[], Program]] = {
    "pages": lambda: of_pages(paged, drawn),
    "pages, 4 queries": lambda: of_pages(paged, drawn, queries=4),
    "pages, 8 queries": lambda: of_pages(paged, drawn, queries=8),
    "int8 pages": lambda: of_pages(scaled_pages, whole_numbers, scales()),
    "fp8 pages": lambda: of_pages(scaled_pages, lambda *s: drawn(*s).to(torch.float8_e4m3fn), scales()),
    "int4 pages": lambda: of_pages(packed_pages, packed, scales()),
    "window and sinks": lambda: of_pages(window_and_sinks, drawn, drawn(HEADS), read=2048 / (KEYS * 15 / 16)),
    "chosen blocks": chosen_blocks,
    "latents, 16 heads": lambda: of_latents(latent, 16),
    "latents, 128 heads": lambda: of_latents(latent, 128),
    "latents in one tensor, 16 heads": lambda: of_one_latent(16),
    "latents in one tensor, 128 heads": lambda: of_one_latent(128),
    "latents with weights, 16 heads": lambda: of_latents(absorbed, 16),
    "latents with weights, 128 heads": lambda: of_latents(absorbed, 128),
}

# Measurement ----------------------------------------------------------------------------------------------------------


def copy_speed() -> float:
    """Bytes per second of a copy, read and written."""
    source = torch.randint(0, 100, (2**30,), device="cuda", dtype=torch.int8)
    target = torch.empty_like(source)
    times = in_turns({"copy": lambda: target.copy_(source)}, ROUNDS, {"copy": ContestantResult()})["copy"]
    return 2 * source.numel() / statistics.median(times) * 1e3


def compiled(program: Program) -> Call:
    """The program by onepass, as a graph of CUDA."""
    made = torch.compile(program.function, backend=onepass.onepass_backend, dynamic=False)
    for _ in range(3):
        made(*program.given)
    return captured(lambda: made(*program.given))


def measured(name: str, copy: float) -> list[dict[str, object]]:
    """A row for onepass, and one for FlashInfer where both it and the program are there. An error is in its row."""
    torch._dynamo.reset()
    try:
        program = PROGRAMS[name]()
        right = program.right()
    except Exception as error:
        return [{"program": name, "where": said(error)}]
    ways = {name: lambda: compiled(program)}
    if program.peer is not None and flashinfer_peer.available():
        ways[f"{name}, FlashInfer"] = lambda: captured(program.peer())
    rows = []
    for key, way in ways.items():
        try:
            rows.append({"program": key} | _measured_call(way(), program, right, copy))
        except Exception as error:
            rows.append({"program": key, "where": said(error)})
    regions = [region.ran for report in onepass.reports()[-1:] for region in report.regions]
    rows[0].setdefault("how", ", ".join(regions))
    return rows


def _measured_call(replay: Call, program: Program, right: Tensor, copy: float) -> dict[str, object]:
    found = replay()[:CHECKED].double()
    as_many = torch.zeros(program.bytes // 4, dtype=torch.int32, device="cuda")
    calls = {"program": replay, "read": captured(lambda: torch.max(as_many))}
    times = in_turns(calls, ROUNDS, {each: ContestantResult() for each in calls})
    milliseconds, read = (statistics.median(times[each]) for each in calls)
    speed = program.bytes / milliseconds * 1e3
    return {
        "milliseconds": milliseconds,
        "gigabytes": program.bytes / 1e9,
        "terabytes_per_second": speed / 1e12,
        "of_copy": speed / copy,
        "of_read": read / milliseconds,
        "teraflops": program.flops / milliseconds / 1e9,
        "error": float((found - right).abs().max() / right.abs().max()),
        "where": torch.cuda.get_device_name(),
    }


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="a file for the rows, as comma-separated values")
    parser.add_argument("--programs", nargs="*", choices=PROGRAMS, default=list(PROGRAMS))
    asked = parser.parse_args()
    torch.manual_seed(0)
    copy, rows = copy_speed(), []
    print(f"a copy: {copy / 1e12:.2f} TB/s", flush=True)
    for name in asked.programs:
        for row in measured(name, copy):
            rows.append(row)
            numbers = [f"{field} {row[field]:.3g}" for field in FIELDS[1:8] if field in row]
            print(f"{row['program']:32}", *(numbers or [row["where"]]), row.get("how", ""), flush=True)
    if asked.out is not None:
        write_rows(asked.out, FIELDS, rows)


if __name__ == "__main__":
    main()

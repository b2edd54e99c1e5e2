"""What equal bits cost on one GPU: decodes, from pages, too, and prefills, with and without `invariant`, captured.

`python bench/invariant.py --out results.csv [--problems decode "paged decode" prefill]`. The two take turns, each as a
graph of CUDA, with a cold L2 cache. Results are compared with float64. A ratio is the time with the option over the
time without it.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from torch import Tensor

import onepass
from bench.paged_decode import attend, captured, paged
from onepass.bench.results import write_rows
from onepass.bench.timing import Call, ContestantResult, in_turns, said

ROUNDS = 5
CHECKED = 2  # sequences, and last rows, that are compared with float64
CONTESTANTS = {"free": {}, "invariant": {"invariant": True}}  # the backend's options by name
FIELDS = ("problem", "contestant", "milliseconds", "ratio", "error", "where")


@dataclass(frozen=True)
class Sizes:
    """Of decode: sequences of so many keys, in pages of some slots; the prefill is one sequence of as many rows."""

    sequences: int = 32
    keys: int = 4096
    heads: int = 32
    key_heads: int = 8
    width: int = 128
    slots: int = 64
    kind: torch.dtype = torch.bfloat16
    device: str = "cuda"

    def random(self, *shape: int) -> Tensor:
        return torch.randn(*shape, dtype=self.kind, device=self.device)


def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention of each row to the keys up to its own place; heads of keys are shared by heads of queries."""
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    i, j = (torch.arange(x.shape[2], device=q.device) for x in (q, k))
    seen = j <= (k.shape[2] - q.shape[2] + i)[:, None]
    return (q @ k.mT * q.shape[-1] ** -0.5).masked_fill(~seen, -math.inf).softmax(-1) @ v


@dataclass(frozen=True)
class Problem:
    """A program, its arguments, and what float64 gives for `checked` of its result."""

    function: Callable[..., Tensor]
    given: tuple[Tensor, ...]
    right: Tensor
    checked: Callable[[Tensor], Tensor]


def decode(sizes: Sizes) -> Problem:
    q = sizes.random(sizes.sequences, sizes.heads, 1, sizes.width)
    k, v = (sizes.random(sizes.sequences, sizes.key_heads, sizes.keys, sizes.width) for _ in range(2))
    given = q, k, v, _lengths(sizes)
    return Problem(attend, given, attend(*(_wide(x[:CHECKED]) for x in given)), lambda found: found[:CHECKED])


def paged_decode(sizes: Sizes) -> Problem:
    """Each sequence has its own pages, in random order over the cache."""
    row = -(-sizes.keys // sizes.slots)
    pages = sizes.sequences * row
    table = torch.randperm(pages, device=sizes.device).view(sizes.sequences, row)
    q = sizes.random(sizes.sequences, sizes.heads, 1, sizes.width)
    kc, vc = (sizes.random(pages, sizes.slots, sizes.key_heads, sizes.width) for _ in range(2))
    lengths = _lengths(sizes)
    few = _wide(q[:CHECKED]), *(_wide(c[table[:CHECKED]].flatten(1, 2).transpose(1, 2)) for c in (kc, vc))
    right = attend(*few, lengths[:CHECKED])
    return Problem(paged, (q, kc, vc, table, lengths), right, lambda found: found[:CHECKED])


def prefill(sizes: Sizes) -> Problem:
    q = sizes.random(1, sizes.heads, sizes.keys, sizes.width)
    k, v = (sizes.random(1, sizes.key_heads, sizes.keys, sizes.width) for _ in range(2))
    right = causal(_wide(q[:, :, -CHECKED:]), _wide(k), _wide(v))
    return Problem(causal, (q, k, v), right, lambda found: found[:, :, -CHECKED:])


PROBLEMS = {
    "decode": decode,
    "paged decode": paged_decode,
    "one long decode": lambda sizes: decode(replace(sizes, sequences=1, keys=4 * sizes.keys)),
    "prefill": prefill,
    "prefill, D 64": lambda sizes: prefill(replace(sizes, width=64)),
}


def _lengths(sizes: Sizes) -> Tensor:
    return torch.full((sizes.sequences,), sizes.keys, device=sizes.device)


def _wide(x: Tensor) -> Tensor:
    return x.double() if x.is_floating_point() else x


def compiled(problem: Problem, options: dict) -> Call:
    """The compiled program, called until nothing is compared or tuned any more."""
    torch._dynamo.reset()
    call = torch.compile(problem.function, backend=onepass.onepass_backend, options=options, dynamic=False)
    for _ in range(3):
        call(*problem.given)
    return lambda: call(*problem.given)


def measured(name: str, sizes: Sizes, rounds: int = ROUNDS) -> list[dict[str, object]]:
    """A row for each contestant. One that fails has the reason in its row."""
    problem, calls, wrong, failed = PROBLEMS[name](sizes), {}, {}, {}
    for contestant, options in CONTESTANTS.items():
        try:
            call = compiled(problem, options)
            calls[contestant] = captured(call) if sizes.device == "cuda" else call
            found = problem.checked(calls[contestant]()).double()
            wrong[contestant] = float((found - problem.right).abs().max())
        except Exception as error:
            calls.pop(contestant, None)
            failed[contestant] = said(error)
    taken = in_turns(calls, rounds, dict.fromkeys(calls, ContestantResult()))
    times = {contestant: statistics.median(t) for contestant, t in taken.items() if t}
    where = torch.cuda.get_device_name() if sizes.device == "cuda" else "a CPU"
    rows = []
    for contestant in CONTESTANTS:
        row: dict[str, object] = {"problem": name, "contestant": contestant, "where": where}
        if contestant in times:
            row |= {"milliseconds": times[contestant], "error": wrong[contestant]}
            if "free" in times:
                row["ratio"] = times[contestant] / times["free"]
        else:
            row["where"] = failed.get(contestant, "failed while it was measured")
        rows.append(row)
    return rows


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="a file for the rows, as comma-separated values")
    parser.add_argument("--problems", nargs="*", choices=PROBLEMS, default=list(PROBLEMS))
    asked = parser.parse_args()
    torch.manual_seed(0)
    rows = []
    print(f"{'':28} milliseconds, ratio, largest error")
    for name in asked.problems:
        for row in measured(name, Sizes()):
            rows.append(row)
            numbers = [f"{row[n]:9.4g}" for n in FIELDS[2:5] if n in row] or [row["where"]]
            print(f"{name:14} {row['contestant']:12}", *numbers, sep="  ", flush=True)
    if asked.out:
        write_rows(asked.out, FIELDS, rows)


if __name__ == "__main__":
    main()

"""Schedules of many ranks on paper: their own code by a clock, held against two measured GPUs, then for more.

`python bench/simulate_ranks.py [--out results.csv]`, a minute on a CPU. Kernels take what one H200 was measured to take
(`context_parallel_h200.csv`); links take the bytes a second that `onepass/distributed/traffic.py` estimates with.
A share is one GPU's time over the ranks' time and number. Example: 0.97 at 1024 ranks is 993 times one GPU's speed.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Iterator, Sequence
from math import prod
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from onepass.bench.results import write_rows
from onepass.bench.simulated_ranks import Machine, Task, simulated
from onepass.distributed.schedules import SCHEDULES
from onepass.distributed.traffic import LINK, NETWORK, START, RankWork, estimates, most_pieces

MEASURED = Path(__file__).parent / "results" / "context_parallel_h200.csv"
H200 = Machine(memory=4.0e12, link=LINK, network=NETWORK, start=START, host=8)
MEASURED_TOKENS, HEADS, WIDTH, BYTES = 131072, 16, 128, 2
TOKENS, RANKS = (131072, 2**20, 10 * 2**20), (8, 64, 1024)
KIND, TIMES = ("problem", "tokens", "ranks", "schedule", "pieces"), ("forward", "step")
FIELDS = (*KIND, *TIMES, *(f"{name}_share" for name in TIMES), "held_gib")
Times = dict[tuple[str, str], tuple[float, float]]  # by problem and contestant: seconds of a forward and of a step


def measured() -> Times:
    """What two GPUs, and one, were measured to take."""
    with MEASURED.open() as file:
        rows = [*csv.DictReader(file)]
    return {(r["problem"], r["contestant"]): (float(r["forward"]) / 1e3, float(r["step"]) / 1e3) for r in rows}


def task(one: tuple[float, float], tokens: int) -> Task:
    """An attention whose kernels take, for each pair, what one GPU took."""
    pairs = HEADS * MEASURED_TOKENS**2
    return Task(tokens, HEADS, HEADS, WIDTH, one[0] / pairs, (one[1] - one[0]) / pairs)


def beside_measured(times: Times) -> Iterator[tuple[str, str, str, float, float]]:
    """Problem, contestant, "forward" or "step", and seconds: simulated and measured, of two ranks."""
    for problem, contestant in times:
        schedule, _, given = contestant.partition(", pieces ")
        if schedule in SCHEDULES:
            one = task(times[problem, "one GPU, onepass"], MEASURED_TOKENS)
            pieces = int(given) if given else pieces_of(schedule, (2,), MEASURED_TOKENS)
            found = simulated(schedule, (2,), one, H200, pieces)
            forward, step = times[problem, contestant]
            yield problem, contestant, "forward", found.forward, forward
            yield problem, contestant, "step", found.step, step


def pieces_of(schedule: str, sizes: Sequence[int], tokens: int) -> int:
    """In how many pieces `context_parallel` computes the heads."""
    part, swapped = tokens // prod(sizes), sizes[-1] if "heads" in SCHEDULES[schedule] else 1
    return min(most_pieces(RankWork(0, 4.0 * part * part * HEADS * WIDTH), sizes, schedule), HEADS // swapped)


def on_paper(times: Times, tokens: Sequence[int], ranks: Sequence[int]) -> Iterator[dict[str, object]]:
    """A row for each schedule that heads allow."""
    for problem in ("full", "causal"):
        one = times[problem, "one GPU, onepass"]
        for length in tokens:
            for count in ranks:
                for name, roles in SCHEDULES.items():
                    sizes = (count,) if len(roles) == 1 else (count // H200.host, H200.host)
                    swapped = sizes[-1] if "heads" in roles else 1
                    if HEADS % swapped == 0 and sizes[0] > 1:
                        yield row(problem, one, length, name, sizes)


def row(problem: str, one: tuple[float, float], tokens: int, schedule: str, sizes: Sequence[int]) -> dict[str, object]:
    """The seconds of a schedule, and how much of the ranks' time is the kernels of one GPU."""
    ranks = sizes[0] * (sizes[1] if len(sizes) > 1 else 1)
    pieces = pieces_of(schedule, sizes, tokens)
    times = simulated(schedule, sizes, task(one, tokens), H200, pieces)
    alone = [x * (tokens / MEASURED_TOKENS) ** 2 / ranks for x in one]
    part = tokens // ranks * HEADS * WIDTH * BYTES
    held = estimates(RankWork(2 * part, 0.0, 4 * part), sizes, {schedule: pieces})[schedule].held / 2**30
    shares = alone[0] / times.forward, alone[1] / times.step
    kind = problem, tokens, ranks, schedule, pieces
    return dict(zip(FIELDS, (*kind, times.forward, times.step, *shares, held), strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="a file for the rows, as comma-separated values")
    parser.add_argument("--tokens", nargs="*", type=int, default=TOKENS)
    parser.add_argument("--ranks", nargs="*", type=int, default=RANKS, help="multiples of 8, the GPUs of a host")
    asked = parser.parse_args()
    times, rows = measured(), []
    for problem, schedule, what, found, right in beside_measured(times):
        print(f"{problem}  {schedule}  {what}  {1e3 * found:.1f} ms, measured {1e3 * right:.1f}: {found / right:.3f}")
    print(*FIELDS, sep="  ")
    for line in on_paper(times, asked.tokens, asked.ranks):
        rows.append(line)
        print(*(f"{x:.3g}" if isinstance(x, float) else x for x in line.values()), sep="  ", flush=True)
        if asked.out:
            write_rows(asked.out, FIELDS, rows)


if __name__ == "__main__":
    main()

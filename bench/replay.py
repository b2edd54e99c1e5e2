"""Replays tuners over the measured table: the best found after 10, 20 and 30 trials, against as many trials at random.

`python bench/replay.py` writes bench/results/replay_h200.csv, a row for each problem and reading of the table.
Strict readings refuse kernels that spill, and know what registers would lack; the others time them.
tests/onepass/tune/test_search_space.py holds some of the rows.
"""

from __future__ import annotations

import argparse
import csv
import sys
from math import inf
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.measured import Problem, needed, predicted, space, table, trials
from onepass.tune.bayesian_search import History, at_random, replayed, tune
from onepass.tune.kernel_space import configuration

OUT = Path(__file__).parent / "results" / "replay_h200.csv"
COUNTS = (10, 20, 30)
CHANCES = 200  # seeds of what is drawn at random: it costs nothing
COLUMNS = ("problem", "strict", "seeds", "points", "feasible", "best_ms")
COLUMNS += tuple(f"{who}_{count}" for count in COUNTS for who in ("tuned", "random")) + ("infeasible",)


def histories(problem: Problem, strict: bool, seeds: int) -> tuple[list[History], list[History]]:
    """(tuned, one for each seed; random)"""
    points, trial = space(problem, strict), replayed(trials(problem, strict))
    prior = lambda point: predicted(problem, configuration(point))
    facts = lambda point: needed(problem, configuration(point))
    tuned = [tune(points, trial, COUNTS[-1], prior, seed, facts) for seed in range(seeds)]
    return tuned, [at_random(points, trial, COUNTS[-1], seed) for seed in range(CHANCES)]


def row(problem: Problem, strict: bool, seeds: int) -> dict:
    """Medians over seeds of what was found, as ratios to the best of the table."""
    tuned, drawn = histories(problem, strict, seeds)
    ends = trials(problem, strict)
    best = min(t.time for t in ends.values())
    found = {"problem": str(problem), "strict": int(strict), "seeds": seeds, "points": len(space(problem, strict))}
    found |= {"feasible": sum(t.time < inf for t in ends.values()), "best_ms": best}
    for count in COUNTS:
        found[f"tuned_{count}"] = round(median(h.best_after(count) for h in tuned) / best, 4)
        found[f"random_{count}"] = round(median(h.best_after(count) for h in drawn) / best, 4)
    return found | {"infeasible": round(median(h.infeasible for h in tuned), 3)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", default=str(OUT))
    parser.add_argument("--seeds", type=int, default=20)
    options = parser.parse_args()
    with Path(options.out).open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        for strict in (False, True):
            for problem in table():
                writer.writerow(row(problem, strict, options.seeds))
                file.flush()


if __name__ == "__main__":
    main()

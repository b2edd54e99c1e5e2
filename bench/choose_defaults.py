"""Chooses default rows from the measured table: for each kind of problem the configuration that loses least.

Prints, for each executor and problem, what the present default loses to the best of the table, and for each row of the
defaults the configuration of the table whose worst loss over the row's problems is least (`--rows`). Rows are put into
lowering/triton/default_config.py and lowering/hopper/config.py by hand. tests/lowering/triton/test_default_config.py
holds what is lost.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.measured import Problem, kernel_of, table
from onepass.lowering.gluon.launch import fitting
from onepass.lowering.hopper.kernel_class import row_of
from onepass.lowering.hopper.kernel_form import bind
from onepass.lowering.schedule.kernel_time import Config, executor_of
from onepass.lowering.triton.launch import default_for

GROUPS = {  # what a default row can tell apart
    "triton": lambda p: (p.width,),
    "gluon": lambda p: (p.width, p.variant in ("causal", "window"), p.length),
}


def default(executor: str, problem: Problem) -> Config | None:
    """What the executor launches this problem with, its configuration not given; None if no row can say that."""
    kernel = kernel_of(problem)
    if executor == "triton":
        return default_for(kernel, "sm_90")
    binding = bind(kernel)
    found = fitting(binding, {}, binding.overlays)
    # The table is from before special functions could be emulated.
    return row_of(binding, {}).config if found.emulated_eighths else found


def measured(executor: str, problem: Problem) -> dict[Config, float]:
    """Times of the configurations whose results were right."""
    rows = table()[problem].items()
    return {c: float(r["ms"]) for c, r in rows if executor_of(c) == executor and r["ms"]}


def loss(executor: str, problem: Problem, chosen: Config | None, noise: bool = False) -> float | None:
    """By which part a configuration is slower than the best of the table; None if it was not measured.

    noise: two times that differ by no more than the rounds of one of them do are no order: the loss is to the best of
    those that are faster than that.
    """
    times, rows = measured(executor, problem), table()[problem]
    if chosen not in times:
        return None
    spread = lambda c: float(rows[c]["noise"] or 0) if noise else 0.0
    lost = {c: times[chosen] / time - 1 for c, time in times.items()}
    return max((part for c, part in lost.items() if part > max(spread(c), spread(chosen))), default=0.0)


def least_loss(executor: str, problems: list[Problem]) -> tuple[float, Config] | None:
    """The configuration, measured on all the problems, whose worst loss is least."""
    common = set.intersection(*(set(measured(executor, p)) for p in problems))
    worst = {c: max(loss(executor, p, c) for p in problems) for c in common}
    return min(((worst[c], c) for c in common), key=lambda found: found[0], default=None)


def groups(executor: str) -> dict[tuple, list[Problem]]:
    found = defaultdict(list)
    for problem in table():
        if measured(executor, problem):
            found[GROUPS[executor](problem)].append(problem)
    return dict(sorted(found.items()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", action="store_true", help="also the best configuration of each kind of problem")
    options = parser.parse_args()
    for problem in table():
        said = []
        for executor in GROUPS:
            lost = loss(executor, problem, default(executor, problem)) if measured(executor, problem) else None
            said.append(f"{executor} {'not measured' if lost is None else f'{lost:.1%}'}")
        best = {e: min(measured(e, problem).values()) for e in GROUPS if measured(e, problem)}
        print(f"{problem!s:20} default loses: {', '.join(said):42} faster: {min(best, key=best.get)}")
    for executor in GROUPS if options.rows else ():
        for kind, problems in groups(executor).items():
            found = least_loss(executor, problems)
            print(executor, *kind, "nothing in common" if found is None else f"{found[0]:.1%} {found[1]}")


if __name__ == "__main__":
    main()

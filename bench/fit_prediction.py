"""Fits the constants of lowering/schedule/kernel_time.py to the measured table; ranks each problem by the others' fit.

`--fit` prints constants fitted to all problems; they are written by hand into kernel_time.py and
pipeline_time.py of lowering/schedule, rounded.
`--left-out` fits once more for every problem, without it. Without these, what is there is ranked. Two times are no
order if they differ by less than 1 %, or than two rounds of one of them did. Needs SciPy (extra `tune`) to fit.
"""

from __future__ import annotations

import csv
import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np

from bench.measured import Problem, kernel_of, table
from onepass.lowering.schedule import kernel_time

OUT = Path(__file__).parent / "results" / "prediction_h200.csv"
LEAST_NOISE = {"gluon": 0.01, "triton": 0.02}  # older rows do not say what repeated runs differ by
COLUMNS = ("executor", "problem", "rows", "tau", "ties", "tau_b", "tau_beyond_noise", "left_out")
COLUMNS += ("bias", "spread", "regret")
TIMINGS = {"triton": "TRITON_TIMING", "gluon": "HOPPER_TIMING"}  # names in kernel_time.py
RANGES = {
    "triton": {
        "tensor": (0.9, 1.8), "fma": (0.2, 1.6), "two": (0, 1), "more": (0, 1), "latency": (0, 2500),
        "single": (1, 4), "fixed": (0, 6000), "bytes": (0, 0.3), "spill": (0, 300), "exchange": (0, 300),
        "tail": (0, 1), "launch": (0, 1e-5),
    },
    "gluon": {
        "tensor": (1, 1.8), "fma": (0.2, 5), "alone": (0.2, 8), "issue": (1, 10), "step": (0, 1000),
        "late": (-100, 100), "crowd": (1.2, 12),
        "corner": (1.5, 30), "latency": (0, 2000), "fetch": (0.3, 4), "hold": (0, 2),
        "behind": (0, 2), "bytes": (0, 0.5), "unsent": (0, 0.5), "masked": (0, 2), "spill": (0, 1500),
        "launch": (0, 2e-5),
    },
}  # fmt: skip


def measured(executor: str) -> dict[Problem, list[tuple[kernel_time.Config, kernel_time.Demand, float, float]]]:
    """By problem: configurations with a time, what they ask for, the time in seconds, its noise."""
    found = {}
    for problem, rows in table().items():
        kernel = kernel_of(problem)
        cells = []
        for c, row in rows.items():
            if kernel_time.executor_of(c) == executor and row["ms"]:
                noise = max(LEAST_NOISE[executor], float(row["noise"] or 0))
                demand = kernel_time.demand(kernel, kernel.loops[0], c)
                if demand.resident:
                    cells.append((c, demand, float(row["ms"]) / 1e3, noise))
        if len(cells) >= 2:
            found[problem] = cells
    return found


def times(cells) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(measured, predicted, noise)"""
    launch = lambda c: timing(kernel_time.executor_of(c)).launch
    found = [kernel_time.loop_seconds(d, c) + launch(c) for c, d, *_ in cells]
    return np.array([t for *_, t, _ in cells]), np.array(found), np.array([n for *_, n in cells])


def agreement(true: np.ndarray, found: np.ndarray, noise: np.ndarray | float = 0.0) -> dict[str, float]:
    """Kendall's tau over all pairs, over those beyond the noise, and tau-b, which counts the others as ties."""
    first, second = np.triu_indices(len(true), 1)
    gaps = np.log(true[first] / true[second])
    noise = np.broadcast_to(noise, true.shape)
    ordered = np.abs(gaps) > np.maximum(noise[first], noise[second])
    agree = np.sign(gaps) * np.sign(found[first] - found[second])
    total = agree[ordered].sum()
    return {
        "tau": agree.mean(),
        "ties": int((~ordered).sum()),
        "tau_b": total / np.sqrt(max(1, ordered.sum()) * len(gaps)),
        "tau_beyond_noise": total / max(1, ordered.sum()),
    }


def timing(executor: str):
    """The constants of an executor."""
    return getattr(kernel_time, TIMINGS[executor])


def use(executor: str, vector) -> None:
    """Puts constants in place of those of kernel_time.py."""
    values = {n: float(v) for n, v in zip(RANGES[executor], vector)}
    setattr(kernel_time, TIMINGS[executor], replace(timing(executor), **values))


def errors(executor: str, vector, cells) -> np.ndarray:
    """Errors of logarithms around each problem's median, which counts for less than half: the order matters."""
    use(executor, vector)
    found = []
    for some in cells.values():
        true, chosen, noise = times(some)
        error = np.log(chosen / true)
        found += [(error - np.median(error)) * 0.02 / (0.01 + noise), [0.3 * np.median(error) * np.sqrt(len(some))]]
    return np.concatenate(found)


def fit(executor: str, cells, cold: bool = False) -> list[float]:
    """Puts in constants fitted to these; `cold`: from a start that knows nothing of what was found before."""
    from scipy.optimize import least_squares

    low, high = np.array(list(RANGES[executor].values())).T
    vector = np.array([getattr(timing(executor), n) for n in RANGES[executor]])
    vector = (low + high) / 4 if cold else vector
    scale = (high - low) / 4
    for _ in range(2):
        start = np.clip(vector, low + 1e-3 * scale, high - 1e-3 * scale)
        vector = least_squares(
            lambda v: errors(executor, v, cells), start, bounds=(low, high), x_scale=scale,
            loss="soft_l1", f_scale=0.05, diff_step=1e-3, max_nfev=60,
        ).x  # fmt: skip
    use(executor, vector)
    return vector.tolist()


def ranks(executor: str, left_out: bool = False) -> list[dict]:
    rows, cells = [], measured(executor)
    before = timing(executor)
    for problem, some in cells.items():
        true, found, noise = times(some)
        error = np.log(found / true)
        numbers = agreement(true, found, noise)
        numbers |= {"bias": np.median(error), "spread": error.std(), "regret": true[found.argmin()] / true.min() - 1}
        if left_out:
            fit(executor, {p: c for p, c in cells.items() if p != problem}, cold=True)
            numbers["left_out"] = agreement(true, times(some)[1], noise)["tau_beyond_noise"]
            setattr(kernel_time, TIMINGS[executor], before)
        said = {n: f"{v:.3f}" if isinstance(v, float) else v for n, v in numbers.items()}
        rows.append({"executor": executor, "problem": problem, "rows": len(some)} | said)
    return rows


def main() -> None:
    for executor in RANGES if "--fit" in sys.argv else ():
        fit(executor, measured(executor))
        print(timing(executor))
    with OUT.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        for executor in RANGES:
            for row in ranks(executor, "--left-out" in sys.argv):
                writer.writerow(row)
                print(*row.values())


if __name__ == "__main__":
    main()

"""Fits the constants of lowering/schedule/predict.py to problems of the measured table, and ranks those it did not see.

Fitted: full and causal at one length; Kendall's tau is printed for every problem and executor, over all pairs and over
pairs that differ by more than 2 %, and written to a CSV. The constants found are written by hand into predict.py,
rounded. Needs SciPy (it comes with the extra `tune`) to fit, not to rank.
"""

from __future__ import annotations

import csv
import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np

from bench.measured import Problem, kernel_of, table
from onepass.lowering.schedule import predict

OUT = Path(__file__).parent / "results" / "prediction_h200.csv"
COLUMNS = ("executor", "problem", "fitted", "rows", "tau", "tau_beyond_2_percent", "bias", "spread", "regret")
RANGES = {
    "ptr": {
        "tensor": (0.9, 1.5), "fma": (0.2, 1.2), "latency": (0, 2500), "single": (1, 4),
        "fixed": (0, 6000), "bytes": (0, 0.3), "spill": (0, 300), "exchange": (0, 300), "tail": (0, 1),
        "launch": (0, 2e-5), "two": (0, 1), "more": (0, 1),
    },
    "gluon": {
        "tensor": (0.85, 1.3), "fma": (0.2, 1.2), "step": (0, 300), "fixed": (0, 4000), "bytes": (0, 0.5),
        "ends": (0, 2), "hidden": (0, 0.9), "launch": (0, 2e-5),
        **{f"{groups} {n}": (0, 1.0) for groups in ("two", "more") for n in range(4)},
    },
}  # fmt: skip


def fitted(problem: Problem) -> bool:
    return problem.length == 4096 and problem.variant in ("full", "causal")


def measured(executor: str) -> dict[Problem, list[tuple[predict.Configuration, predict.Demand, float]]]:
    """By problem: configurations with a time, what they ask for, and the time in seconds."""
    found = {}
    for problem, rows in table().items():
        kernel = kernel_of(problem)
        cells = [(c, float(r["ms"]) / 1e3) for c, r in rows.items() if c.executor == executor and r["ms"]]
        if len(cells) >= 2:
            found[problem] = [(c, predict.demand(kernel, kernel.loops[0], c), t) for c, t in cells]
    return found


def times(cells) -> tuple[np.ndarray, np.ndarray]:
    """(measured, predicted)"""
    launch = predict.EXECUTORS[cells[0][0].executor].launch
    return np.array([t for *_, t in cells]), np.array([predict.loop_seconds(d, c) + launch for c, d, _ in cells])


def kendall(true: np.ndarray, predicted: np.ndarray, noise: float = 0.0) -> float:
    """Kendall's tau over the pairs whose measured times differ by more than the noise."""
    first, second = np.triu_indices(len(true), 1)
    gaps = np.log(true[first] / true[second])
    kept = np.abs(gaps) > noise
    agree = np.sign(gaps[kept]) * np.sign((predicted[first] - predicted[second])[kept])
    return float(agree.mean()) if kept.any() else float("nan")


def use(executor: str, vector) -> None:
    """Puts constants into predict.EXECUTORS."""
    known = predict.EXECUTORS[executor]
    values = {n: float(v) for n, v in zip(RANGES[executor], vector)}
    shares = [[values.pop(n) for n in list(values) if n.split()[0] == groups] for groups in ("two", "more")]
    overlap = tuple(tuple(share) * (4 // len(share)) for share in shares)
    predict.EXECUTORS[executor] = replace(known, overlap=overlap, **values)


def start(executor: str) -> list[float]:
    known, shares = predict.EXECUTORS[executor], {}
    for groups, row in zip(("two", "more"), known.overlap):
        shares |= {groups: row[0], **{f"{groups} {n}": share for n, share in enumerate(row)}}
    return [shares[n] if n in shares else getattr(known, n) for n in RANGES[executor]]


def loss(executor: str, vector, cells) -> float:
    """Absolute errors of logarithms around each problem's median, which itself counts for half: the order matters."""
    low, high = np.array(list(RANGES[executor].values())).T
    use(executor, np.clip(vector, low, high))
    total = count = 0.0
    for some in cells.values():
        true, found = times(some)
        error = np.log(found / true)
        total += np.sum(np.abs(error - np.median(error))) + 0.5 * len(some) * abs(np.median(error))
        count += len(some)
    return total / count


def ranks(executor: str) -> list[dict]:
    rows = []
    for problem, cells in measured(executor).items():
        true, found = times(cells)
        error = np.log(found / true)
        tau = {"tau": kendall(true, found), "tau_beyond_2_percent": kendall(true, found, 0.02)}
        rest = {"bias": np.median(error), "spread": error.std(), "regret": true[found.argmin()] / true.min() - 1}
        numbers = {n: f"{v:.3f}" for n, v in (tau | rest).items()}
        rows.append(dict(zip(COLUMNS, (executor, problem, int(fitted(problem)), len(cells)))) | numbers)
    return rows


def main() -> None:
    from scipy.optimize import minimize

    for executor in RANGES if "--fit" in sys.argv else ():
        cells = {p: rows for p, rows in measured(executor).items() if fitted(p)}
        options = {"maxiter": 30, "xtol": 1e-3, "ftol": 1e-5}
        bounds = list(RANGES[executor].values())
        function = lambda v, e=executor, c=cells: loss(e, v, c)
        found = minimize(function, start(executor), method="Powell", bounds=bounds, options=options)
        use(executor, found.x)
        print(found.fun, predict.EXECUTORS[executor])
    with OUT.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        for executor in RANGES:
            for row in ranks(executor):
                writer.writerow(row)
                print(*row.values())


if __name__ == "__main__":
    main()

"""Fits the constants of lowering/schedule/predict.py to cells of a measured table, and ranks the cells it did not see.

Fitted: two of the four shapes; the rank agreement (Kendall's tau) is printed for all. The numbers found are written by
hand into predict.py, rounded. Needs SciPy (it comes with the extra `tune`) to fit, not to rank.
"""

from __future__ import annotations

import csv
import sys
from dataclasses import replace
from functools import cache
from itertools import combinations
from math import log
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np

from onepass.lowering.build import build_plan
from onepass.lowering.schedule import predict
from tests.attention_terms import attention

TABLE = Path(__file__).parent / "results" / "hopper_configurations.csv"
FITTED = {("4096", "128"), ("4096", "64")}  # length, width
FREE = {  # constant: the executors that share it, and where it is looked for
    "overlap": (("ptr", "tma"), ("ws",), ("gluon",)),
    "alone": (("ptr", "tma"),),
    "step": (("ptr",), ("tma",), ("ws",), ("gluon",)),
    "issue": (("ptr",),),
    "latency": (("ptr", "tma"),),
}
RANGES = {"overlap": (0.3, 1.0), "alone": (0.0, 0.7), "step": (0, 500), "issue": (0, 20), "latency": (0, 2500)}


def measured(path: Path = TABLE) -> list[dict]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@cache
def kernel_of(batch: int, heads: int, length: int, width: int):
    case = attention((batch, heads), length, length, width, dtype="bfloat16")
    return build_plan(case.term, case.output, case.order).kernels[0]


def configuration(cell: dict) -> predict.Configuration:
    rows = int(cell["rows"])
    warps = int(cell["warps"]) if cell["warps"] else rows // 16
    return predict.Configuration(cell["executor"], rows, int(cell["loop"]), warps, int(cell["stages"]))


def shape_of(cell: dict) -> tuple[str, str]:
    return cell["length"], cell["width"]


def predicted(cell: dict) -> float:
    """Milliseconds."""
    kernel = kernel_of(*(int(cell[n]) for n in ("batch", "heads", "length", "width")))
    return predict.seconds(kernel, configuration(cell)) * 1e3


def kendall(cells: list[dict], noise: float = 0.0) -> float:
    """Kendall's tau over the pairs of cells whose measured times differ by more than the noise."""
    pairs = [(a, b) for a, b in combinations(cells, 2) if abs(log(float(a["ms"]) / float(b["ms"]))) > noise]
    times = {id(c): predicted(c) for c in cells}
    signs = [np.sign((float(a["ms"]) - float(b["ms"])) * (times[id(a)] - times[id(b)])) for a, b in pairs]
    return float(np.mean(signs))


def use(vector) -> None:
    """Puts the constants into predict.EXECUTORS."""
    values = iter(vector)
    for constant, groups in FREE.items():
        for group in groups:
            value = float(next(values))
            for name in group:
                predict.EXECUTORS[name] = replace(predict.EXECUTORS[name], **{constant: value})


def loss(vector, cells: list[dict]) -> float:
    use(vector)
    errors = [log(predicted(c) / float(c["ms"])) for c in cells]
    return float(np.mean(np.square(errors)))


def main() -> None:
    from scipy.optimize import differential_evolution

    cells = [c for c in measured() if c["status"] == "ok"]
    seen = [c for c in cells if shape_of(c) in FITTED]
    bounds = [RANGES[constant] for constant, groups in FREE.items() for _ in groups]
    found = differential_evolution(loss, bounds, args=(seen,), maxiter=int(sys.argv[1]), seed=0, popsize=6, tol=1e-8)
    use(found.x)
    print(f"root mean square error in the logarithm: {loss(found.x, seen) ** 0.5:.3f}")
    for executor in predict.EXECUTORS.values():
        print({n: round(v, 3) if isinstance(v, float) else v for n, v in vars(executor).items()})
    for shape in dict.fromkeys(map(shape_of, cells)):
        here = [c for c in cells if shape_of(c) == shape]
        kind = "fitted" if shape in FITTED else "held out"
        print(shape, kind, len(here), f"tau {kendall(here):.3f}", f"beyond 2 %: {kendall(here, 0.02):.3f}")


if __name__ == "__main__":
    main()

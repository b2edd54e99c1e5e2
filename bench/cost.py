"""Holds the estimates of lowering/cost against measured times: every problem of the suites, every configuration.

`python bench/cost.py [--fit] [--out FILE]`. Plans are made here, as for an H200, and no GPU is needed. Printed are a
line for each problem and the rank correlation of estimates with times: of pairs whose times differ by more than a
tenth, the share in the right order less the share in the wrong one. `--fit` prints constants of a launch fitted to the
suites; they are written by hand into lowering/cost/kernel_cost.py, rounded. Needs SciPy (extra `tune`) to fit.
"""

from __future__ import annotations

import argparse
import csv
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import torch

from bench import fit_prediction
from bench.fit_prediction import agreement
from onepass.api.backend import Recorder
from onepass.bench import beyond_flex, problems, suites
from onepass.bench.problems import Shape, Variant
from onepass.bench.results import write_rows
from onepass.bench.scales import GPU
from onepass.compiler import compiled_region
from onepass.compiler.options import Options
from onepass.fusion import estimates
from onepass.lowering.cost import kernel_cost
from onepass.lowering.cost.plan_cost import KernelEstimate, plan_estimate
from onepass.lowering.plan.device import H200
from onepass.lowering.plan.records import Plan

MEASURED = Path(__file__).parent / "results" / "suites_latest_h200.csv"
SUITES = ("peers", "variants", "flashlight", "beyond")
GAP = 1.1  # times that differ by less are of one rank
TILE = 64  # rows and columns of the tiles of which a mask's data decides
COLUMNS = ("suite", "variant", "shape", "ms", "estimated_ms", "ratio", "kernels", "bound", "kept")
RANGES = {"corner": (1.0, 12.0), "launch": (0.0, 1e-5)}


class Captured(Exception):
    """The function was captured: it need not run."""


@dataclass(frozen=True)
class Measured:
    """A problem with its time in milliseconds, its plans, and which share of the tiles its mask keeps."""

    suite: str
    variant: str
    shape: str
    ms: float
    executor: str
    plans: tuple[Plan, ...]
    kept: float

    def estimates(self) -> list[KernelEstimate]:
        hopper = "gluon" in self.executor
        return [one for plan in self.plans for one in plan_estimate(plan, kept=self.kept, hopper=hopper)]


def correlation(true: np.ndarray, found: np.ndarray) -> float:
    """Of pairs that differ by more than the gap, those in the right order less those in the wrong one, as a share."""
    return float(agreement(true, found, np.log(GAP))["tau_beyond_noise"])


def report(rows: list[dict], columns: Sequence[str], out: Path | None) -> None:
    """Prints a line for each row, and writes them to a CSV file if one is given."""
    for row in rows:
        print("  ".join(f"{row[name]}" for name in columns))
    if out:
        write_rows(out, columns, rows, measured_now=False)


# Suites ---------------------------------------------------------------------------------------------------------------


def measured(names: Sequence[str] = SUITES, pattern: str = "") -> Iterator[Measured]:
    """The problems of the table, of some suites. pattern: a regular expression on the variants' names."""
    with MEASURED.open(newline="") as file:
        rows = {(r["suite"], r["variant"], r["shape"]): r for r in csv.DictReader(file) if r["contestant"] == "onepass"}
    empty = lambda *sizes, device, dtype: torch.empty(*sizes, device=device, dtype=dtype)
    with (
        mock.patch.object(problems, "normal", empty),
        mock.patch.object(beyond_flex, "normal", empty),
        mock.patch.object(problems, "_pairs", lambda *_: 1),
        mock.patch.object(estimates, "planned_for", lambda _: H200),
    ):
        for case in (case for suite in names for case in suites.cases(suite, GPU)):
            row = rows.pop((case.suite, case.variant, case.shape), None)
            if row is not None and re.search(pattern, case.variant):
                plans, kept = plans_of(case), kept_by(*case.make.args)
                yield Measured(
                    case.suite, case.variant, case.shape, float(row["ms"]), row["executor"], tuple(plans), kept
                )


def plans_of(case: suites.Case) -> list[Plan]:
    """The plans of a problem's regions."""
    problem, made, recorder = case.make("cpu", torch.bfloat16), {}, Recorder(Options.read({}))
    make = compiled_region.make_traced

    def kept(*arguments, **words):
        found = make(*arguments, **words)
        made[found.report.key] = found.plan
        return found

    def backend(module, inputs):
        recorder(module, inputs)
        raise Captured

    torch._dynamo.reset()
    with mock.patch.object(compiled_region, "make_traced", kept), torch.no_grad():
        try:
            torch.compile(problem.plain, backend=backend)(*problem.arguments)
        except torch._dynamo.exc.BackendCompilerFailed:
            pass
    return [made[region.key] for report in recorder.reports for region in report.regions if region.key in made]


def kept_by(variant: object = None, shape: object = None, *_: object) -> float:
    """The share of tiles in which a mask keeps something."""
    if not isinstance(variant, Variant) or not isinstance(shape, Shape) or variant.mask_mod is None:
        return 1.0
    torch.manual_seed(0)
    keeps = variant.mask_mod(*variant.extra(shape, "cpu", torch.bfloat16))
    rows, columns, shares = torch.arange(shape.length)[:, None], torch.arange(shape.keys), []
    for batch in range(shape.batch if variant.over("b") else 1):
        kept = keeps(batch, 0, rows, columns).expand(shape.length, shape.keys)
        tiles = kept.unflatten(0, (-1, TILE)).unflatten(2, (-1, TILE))
        shares.append(tiles.any(3).any(1).float().mean().item())
    return float(np.mean(shares))


def rows_of(problem: Measured) -> dict[str, object]:
    found = problem.estimates()
    total = 1e3 * sum(one.estimate.seconds for one in found)
    said = {"ms": f"{problem.ms:.4g}", "estimated_ms": f"{total:.4g}", "ratio": f"{total / problem.ms:.2f}"}
    longest = max(found, key=lambda one: one.estimate.seconds, default=None)
    bound = "" if longest is None else longest.estimate.bound or longest.estimate.why
    return {
        "suite": problem.suite, "variant": problem.variant, "shape": problem.shape, **said, "kernels": len(found),
        "bound": bound, "kept": f"{problem.kept:.3f}",
    }  # fmt: skip


def totals(known: list[Measured], timing: kernel_cost.Timing) -> np.ndarray:
    """Estimated milliseconds with these constants."""
    with mock.patch.object(kernel_cost, "TIMING", timing):
        return np.array([1e3 * sum(e.estimate.seconds for e in one.estimates()) for one in known])


def fit(known: list[Measured]) -> kernel_cost.Timing:
    """Constants for which the logarithms of estimates are close to those of times; outliers count for less."""
    from scipy.optimize import least_squares

    true, (low, high) = np.array([one.ms for one in known]), np.array(list(RANGES.values())).T
    timing = lambda v: replace(kernel_cost.TIMING, **dict(zip(RANGES, map(float, v), strict=True)))
    start = np.clip([getattr(kernel_cost.TIMING, n) for n in RANGES], low, high)
    found = least_squares(
        lambda v: np.log(totals(known, timing(v)) / true), start, bounds=(low, high), x_scale=high - low,
        loss="soft_l1", f_scale=0.1, diff_step=1e-2, max_nfev=15,
    )  # fmt: skip
    return timing(found.x)


# Configurations -------------------------------------------------------------------------------------------------------


def of_configurations() -> dict[str, tuple[float, float, int]]:
    """By executor: the correlation within problems, over all of them, and how many configurations there are."""
    found = {}
    for executor in fit_prediction.RANGES:
        true, estimated, inside, pairs = [], [], 0.0, 0
        for problem, cells in fit_prediction.measured(executor).items():
            kernel = fit_prediction.kernel_of(problem)
            times = np.array([time for _, _, time, _ in cells])
            guesses = np.array([kernel_cost.estimate(kernel, config).seconds for config, *_ in cells])
            count = len(times) * (len(times) - 1) // 2 - agreement(times, guesses, np.log(GAP))["ties"]
            inside, pairs = inside + count * correlation(times, guesses), pairs + count
            true.append(times), estimated.append(guesses)
        every = np.concatenate(true)
        found[executor] = inside / pairs, correlation(every, np.concatenate(estimated)), len(every)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fit", action="store_true", help="fit the constants of a launch, and print them")
    parser.add_argument("--out", type=Path, help="write a row for each problem of the suites to this CSV file")
    options = parser.parse_args()
    known = list(measured())
    if options.fit:
        print(found := fit(known))
        kernel_cost.TIMING = found
    rows = [rows_of(problem) for problem in known]
    report(rows, COLUMNS, options.out)
    true, estimated = (np.array([float(row[name]) for row in rows]) for name in ("ms", "estimated_ms"))
    error = np.exp(np.median(np.abs(np.log(estimated / true))))
    print(f"suites: {correlation(true, estimated):.3f} over {len(rows)} problems, median error {error - 1:.0%}")
    for executor, (inside, over_all, count) in of_configurations().items():
        print(f"configurations of {executor}: {inside:.3f} within a problem, {over_all:.3f} over all {count}")


if __name__ == "__main__":
    main()

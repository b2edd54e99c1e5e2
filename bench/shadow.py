"""Lists kernels that another shape would make faster by the estimate than the one that they have.

`python bench/shadow.py [--out FILE] [--gain 1.05] [--time]`. For every kernel of the suites each dim of its results is
tried as rows, with each limit of what a tile holds whole; what that makes, further cuts included, is costed by
lowering/cost beside the planner's own choice. A row of the table is a difference. `--time`, on a GPU, runs both forms
in turns with random inputs, compares their results, and adds the measured times. Then the model or the planner is
mended. `--variants REGEX` leaves out others.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from math import inf, prod
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch

from bench.cost import Measured, measured, report
from onepass.bench.timing import Call, ContestantResult, in_turns, said
from onepass.egraph.terms.term import Dim, Tensor
from onepass.lowering.cost.plan_cost import plan_estimate
from onepass.lowering.cost.traffic import bytes_of
from onepass.lowering.executors import EXECUTORS
from onepass.lowering.plan.plan_choice import PlanChoice
from onepass.lowering.plan.records import Kernel, NotPlannable, Plan
from onepass.lowering.plan.thresholds import MAX_RESIDENT_ELEMENTS
from onepass.lowering.planning.planner import normalised, plan_with, prepared
from onepass.lowering.planning.planning_state import dims_of_results

LIMITS = (MAX_RESIDENT_ELEMENTS, MAX_RESIDENT_ELEMENTS // 2, MAX_RESIDENT_ELEMENTS // 4)
COLUMNS = ("suite", "variant", "shape", "kernel", "rows", "held", "ms", "other_rows", "limit", "other_kernels")
COLUMNS += ("other_ms", "gain", "tried", "measured_ms", "other_measured_ms", "measured_gain", "other_mib", "note")
ROUNDS = 5
SHARE_OF_ERROR = 0.02  # of the largest result, that the results of two forms may differ by: both round to bfloat16


@dataclass(frozen=True)
class Shape:
    """A choice for one kernel: its rows, None for the planner's own; the most elements of a dim held whole."""

    rows: Dim | None
    limit: int = MAX_RESIDENT_ELEMENTS


def plan_of(kernel: Kernel, shape: Shape) -> Plan:
    """The kernels that compute a kernel's results with a shape. Raises NotPlannable."""
    rows = () if shape.rows is None else ((dims_of_results(kernel.stores), shape.rows),)
    return plan_with(prepared(normalised(kernel.stores, shape.limit), PlanChoice(rows=rows)))


def seconds(kernel: Kernel, shape: Shape, kept: float, hopper: bool) -> tuple[float, int]:
    """The estimate for a kernel's results with a shape, and how many launches that is; infinite if it has no plan."""
    try:
        found = plan_estimate(plan_of(kernel, shape), kept=kept, hopper=hopper)
    except NotPlannable:
        return inf, 0
    return sum(one.estimate.seconds for one in found), len(found)


def shapes(kernel: Kernel) -> Iterator[Shape]:
    dims = dict.fromkeys(d for store in kernel.stores for d in store.order if d.size != 1)
    for limit in LIMITS:
        for rows in (None, *dims):
            if (rows, limit) != (None, MAX_RESIDENT_ELEMENTS):
                yield Shape(rows, limit)


def compared(problem: Measured, timed_from: float = inf) -> Iterator[dict[str, object]]:
    """A row for each kernel of a problem, with the best of the other shapes. tried: how many of them have a plan.

    timed_from: the estimated gain from which on both forms run on this GPU.
    """
    hopper = "gluon" in problem.executor
    for kernel in (kernel for plan in problem.plans for kernel in plan.kernels):
        own, _ = seconds(kernel, Shape(None), problem.kept, hopper)
        others = {shape: seconds(kernel, shape, problem.kept, hopper) for shape in shapes(kernel)}
        best = min(others, key=lambda shape: others[shape][0])
        other, launches = others[best]
        times = times_of(kernel, best, problem.kept, hopper) if own / other >= timed_from else {}
        yield {
            "suite": problem.suite, "variant": problem.variant, "shape": problem.shape, "kernel": kernel.name,
            "rows": kernel.rows, "held": " ".join(map(str, kernel.held)), "ms": f"{1e3 * own:.4g}",
            "other_rows": best.rows or kernel.rows, "limit": best.limit, "other_kernels": launches,
            "other_ms": f"{1e3 * other:.4g}", "gain": own / other, "tried": sum(t < inf for t, _ in others.values()),
            **dict.fromkeys(COLUMNS[-5:], ""), **times,
        }  # fmt: skip


# On a GPU


def given(tensor: Tensor, kept: float) -> torch.Tensor:
    """Random numbers for an input: positive in float32, as sums of weights are; of a mask, the share `kept` is true."""
    shape = [int(size) for size in tensor.shape]
    if tensor.dtype == "bool":
        return torch.rand(shape, device="cuda") < kept
    numbers = torch.randn(shape, device="cuda")
    return 1 + numbers.abs() if tensor.dtype == "float32" else numbers.to(getattr(torch, tensor.dtype))


def times_of(kernel: Kernel, shape: Shape, kept: float, hopper: bool) -> dict[str, object]:
    """Milliseconds of both forms of a kernel, and what the other form stores between its kernels."""
    tensors = {t.name: given(t, kept) for t in kernel.inputs}
    executor = EXECUTORS["gluon" if hopper else "triton"]
    calls: dict[str, Call] = {}
    try:
        plans = {"own": plan_of(kernel, Shape(None)), "other": plan_of(kernel, shape)}
        for name, plan in plans.items():
            values = {t.name: tensors[t.name] for t in plan.inputs}
            calls[name] = partial(executor.prepare(plan, values, {}).run, tuple(values.values()))
        results = {name: call() for name, call in calls.items()}
        apart = max(map(difference, results["own"], results["other"]))
    except Exception as error:
        return {"note": said(error)}
    if not apart <= SHARE_OF_ERROR:
        return {"note": f"the results differ by {apart:.2g} of the largest"}
    found = {name: ContestantResult() for name in calls}
    own, other = (median(taken) for taken in in_turns(calls, ROUNDS, found).values())
    stored = stored_bytes(plans["other"].kernels) - stored_bytes([kernel])
    return {
        "measured_ms": f"{own:.4g}", "other_measured_ms": f"{other:.4g}", "measured_gain": f"{own / other:.2f}",
        "other_mib": f"{stored / 2**20:.0f}",
    }  # fmt: skip


def difference(one: torch.Tensor, other: torch.Tensor) -> float:
    """The largest difference, as a share of the largest number."""
    return float((one.float() - other.float()).abs().max() / one.float().abs().max())


def stored_bytes(kernels: Iterable[Kernel]) -> int:
    """Bytes of all that kernels store."""
    outputs = [store.output for kernel in kernels for store in kernel.stores]
    return sum(prod(int(size) for size in x.shape) * bytes_of(x) for x in outputs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gain", type=float, default=1.05, help="how much faster the estimate has to be")
    parser.add_argument("--out", type=Path, help="write the differences to this CSV file")
    parser.add_argument("--time", action="store_true", help="run both forms on this GPU")
    parser.add_argument("--variants", default="", help="a regular expression on the variants' names")
    options = parser.parse_args()
    problems = measured(pattern=options.variants)
    timed_from = options.gain if options.time else inf
    every = [row for problem in problems for row in compared(problem, timed_from)]
    found = [{**row, "gain": f"{row['gain']:.2f}"} for row in every if row["gain"] >= options.gain]
    report(found, COLUMNS, options.out)
    tried = sum(row["tried"] for row in every)
    print(f"{len(found)} of {len(every)} kernels differ, {tried} other shapes were costed")


if __name__ == "__main__":
    main()

"""Lists kernels that another shape would make faster by the estimate than the one that the planner's rules choose.

`python bench/shadow.py [--out FILE] [--gain 1.05]`. No GPU is needed. For every kernel of the suites each dim of its
results is tried as rows, with each limit of what a tile holds whole; what that makes, further cuts included, is costed
by lowering/cost beside the planner's own choice. A row of the table is a difference: to be timed, and then the model or
the planner is mended.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.cost import Measured, measured, report
from onepass.egraph.terms.term import Dim
from onepass.lowering.cost.plan_cost import plan_estimate
from onepass.lowering.plan.records import Kernel, NotPlannable, Store
from onepass.lowering.plan.thresholds import MAX_RESIDENT_ELEMENTS
from onepass.lowering.planning import kernel_shape
from onepass.lowering.planning.planner import plan_stores

LIMITS = (MAX_RESIDENT_ELEMENTS, MAX_RESIDENT_ELEMENTS // 2, MAX_RESIDENT_ELEMENTS // 4)
COLUMNS = ("suite", "variant", "shape", "kernel", "rows", "held", "ms", "other_rows", "limit", "other_kernels")
COLUMNS += ("other_ms", "gain", "tried")


@dataclass(frozen=True)
class Shape:
    """A choice for one kernel: its rows, None for the planner's own; the most elements of a dim held whole."""

    rows: Dim | None
    limit: int = MAX_RESIDENT_ELEMENTS


@contextmanager
def chosen(shape: Shape, stores: tuple[Store, ...]) -> Iterator[None]:
    """The shape is that of kernels with results of these dims; others are chosen as ever."""
    ordinary, dims = kernel_shape._choose_rows, {d for store in stores for d in store.order}

    def rows(facts: kernel_shape.DimFacts) -> tuple[Dim | None, str]:
        return (shape.rows, "tried") if {*facts.order} == dims else ordinary(facts)

    kernel_shape.kernel_shape.cache_clear()
    try:
        with mock.patch.object(kernel_shape, "_choose_rows", ordinary if shape.rows is None else rows):
            yield
    finally:
        kernel_shape.kernel_shape.cache_clear()


def seconds(kernel: Kernel, shape: Shape, kept: float, hopper: bool) -> tuple[float, int]:
    """The estimate for a kernel's results with a shape, and how many launches that is; infinite if it has no plan."""
    try:
        with chosen(shape, kernel.stores):
            plan = plan_stores(kernel.stores, held=shape.limit)
        found = plan_estimate(plan, kept=kept, hopper=hopper)
    except NotPlannable:
        return inf, 0
    return sum(one.estimate.seconds for one in found), len(found)


def shapes(kernel: Kernel) -> Iterator[Shape]:
    dims = dict.fromkeys(d for store in kernel.stores for d in store.order if d.size != 1)
    for limit in LIMITS:
        for rows in (None, *dims):
            if (rows, limit) != (None, MAX_RESIDENT_ELEMENTS):
                yield Shape(rows, limit)


def compared(problem: Measured) -> Iterator[dict[str, object]]:
    """A row for each kernel of a problem, with the best of the other shapes. tried: how many of them have a plan."""
    hopper = "gluon" in problem.executor
    for kernel in (kernel for plan in problem.plans for kernel in plan.kernels):
        own, _ = seconds(kernel, Shape(None), problem.kept, hopper)
        others = {shape: seconds(kernel, shape, problem.kept, hopper) for shape in shapes(kernel)}
        best = min(others, key=lambda shape: others[shape][0])
        other, launches = others[best]
        yield {
            "suite": problem.suite, "variant": problem.variant, "shape": problem.shape, "kernel": kernel.name,
            "rows": kernel.rows, "held": " ".join(map(str, kernel.held)), "ms": f"{1e3 * own:.4g}",
            "other_rows": best.rows or kernel.rows, "limit": best.limit, "other_kernels": launches,
            "other_ms": f"{1e3 * other:.4g}", "gain": own / other, "tried": sum(t < inf for t, _ in others.values()),
        }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gain", type=float, default=1.05, help="how much faster the estimate has to be")
    parser.add_argument("--out", type=Path, help="write the differences to this CSV file")
    options = parser.parse_args()
    every = [row for problem in measured() for row in compared(problem)]
    found = [{**row, "gain": f"{row['gain']:.2f}"} for row in every if row["gain"] >= options.gain]
    report(found, COLUMNS, options.out)
    tried = sum(row["tried"] for row in every)
    print(f"{len(found)} of {len(every)} kernels differ, {tried} other shapes were costed")


if __name__ == "__main__":
    main()

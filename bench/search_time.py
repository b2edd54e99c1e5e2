"""The host's time to search a form, choose a plan and check certificates, of every variant of the tests; no GPU.

`python bench/search_time.py [--out FILE] [--only causal]`. Milliseconds of the processor, with nothing kept from
before; the first variant is run once more in front, so that imports do not count. Wanted: 150 for one attention, 1000
for the largest.
"""

from __future__ import annotations

import argparse
import re
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.cost import report
from onepass import process_state
from onepass.compiler.optimize import optimize_all
from onepass.errors import OnepassError
from onepass.graph.trace import program_of
from onepass.lowering.plan.records import NotPlannable
from onepass.lowering.stage_times import stage
from onepass.translate.translate import translate
from tests.variants import Variant, every

STAGES = ("search", "plan", "certificates")
COLUMNS = ("variant", "milliseconds", *STAGES)
SEVERAL = 3  # runs, of which the median counts


def measured(variant: Variant) -> dict[str, object] | None:
    """The median of some runs; None for a variant that has no plan."""
    runs = []
    for _ in range(SEVERAL):
        process_state.forget()
        account: dict[str, float] = {}
        try:
            stores = translate(program_of(variant.function, *variant.inputs())).results
            start = time.process_time()
            with stage("rest", account):
                optimize_all(stores)
        except (NotPlannable, OnepassError):
            return None
        runs.append((1e3 * (time.process_time() - start), account))
    total, account = sorted(runs, key=lambda run: run[0])[SEVERAL // 2]
    own = {name: f"{1e3 * account.get(name, 0.0):.0f}" for name in STAGES}
    return {"variant": variant.name, "milliseconds": f"{total:.0f}", **own}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="a file for the rows, as comma-separated values")
    parser.add_argument("--only", default="", help="a regular expression on the variants' names")
    asked = parser.parse_args()
    variants = [variant for variant in every() if re.search(asked.only, variant.name) and not variant.refused]
    measured(variants[0])
    rows = [row for row in map(measured, variants) if row is not None]
    report(rows, COLUMNS, asked.out)
    taken = sorted(float(str(row["milliseconds"])) for row in rows)
    middle, within = statistics.median(taken), sum(one <= 150 for one in taken)
    print(f"{len(taken)} variants: median {middle:.0f} ms, largest {taken[-1]:.0f}, {within} within 150")


if __name__ == "__main__":
    main()

"""What reading plans back takes, of each variant's compile: python bench/read_back.py [--every N].

Prints, for each variant with its gradients, the seconds of the compile, those of reading its plans back, and how many
plans there were; last the medians and the largest. Times are those of the processor, without collections of garbage, of
which a compile leaves much.
"""

from __future__ import annotations

import argparse
import gc
import os
import tempfile
from statistics import median
from time import thread_time

os.environ["ONEPASS_CACHE"] = tempfile.mkdtemp()

from onepass.lowering.readback.check_plan import checked
from tests.support.read_plans import plans_of
from tests.variants import every


def measured(variant) -> tuple[float, list[float]]:
    """Seconds of a compile without reading back, and of reading back each of its plans."""
    begin = thread_time()
    plans = plans_of(variant.function, variant.inputs())
    whole = thread_time() - begin
    found = []
    gc.collect()
    gc.disable()
    for asked, plan in plans:
        begin = thread_time()
        checked(plan, asked)
        found.append(thread_time() - begin)
    gc.enable()
    return whole - sum(found), found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--every", type=int, default=1)
    chosen = parser.parse_args()
    plans: list[float] = []
    shares: list[float] = []
    for variant in every()[:: chosen.every]:
        whole, found = measured(variant)
        plans += found
        shares.append(sum(found) / whole)
        took = f"compile {whole:6.2f} s, read back {1e3 * sum(found):7.1f} ms, {len(found)} plans"
        print(f"{variant.name:50} {took}", flush=True)
    print(f"a plan: median {1e3 * median(plans):.1f} ms, largest {1e3 * max(plans):.0f} ms")
    print(f"of a compile: median {100 * median(shares):.1f} %, largest {100 * max(shares):.0f} %")


if __name__ == "__main__":
    main()

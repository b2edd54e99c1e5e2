"""Says anew what plain Triton's rows of the measured table need of a thread: each kernel is compiled, without a GPU.

`python bench/registers.py` rewrites registers, spilled and status of rows that have a time. Rows of all lengths share a
kernel. Needs the Triton release that the table was measured with; `--kept FILE` holds what was compiled, to go on.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.measured import TABLE, Problem, kernel_of
from bench.settings import SPILLED
from onepass.bench.results import write_rows
from onepass.egraph.terms.term import Tensor
from onepass.lowering.launch.triton_compat import compile_ahead, compiler_options, contiguous, resources
from onepass.lowering.plan.launch_facts import Facts
from onepass.lowering.plan.queries import map_name
from onepass.lowering.plan.records import Plan
from onepass.lowering.triton.kernel import emit
from onepass.lowering.triton.launch import load

SHAPE = ("variant", "width", "rows", "loop", "warps", "stages")


def needs(row: dict) -> dict[str, int]:
    """Registers and spilled words of a thread."""
    problem = Problem(row["variant"], *(int(row[n]) for n in ("batch", "heads", "length", "width")))
    kernel = kernel_of(problem)
    plan = Plan((kernel,), kernel.inputs, tuple(s.output for s in kernel.stores))
    source = emit(kernel, plan, Facts(frozenset("ij")))
    constants = {name: int(row[role]) for name, role in source.tiles}
    tensors = {t.name: t for t in (*kernel.inputs, *(s.output for s in kernel.stores))}
    tensors |= {map_name(kernel, loop): Tensor("map", "int32") for loop in kernel.loops}
    types, ones, divisible = contiguous(source.arguments, tensors)
    options = {"num_warps": int(row["warps"]), "num_stages": int(row["stages"])} | compiler_options(source.text)
    function = load(source.text, source.function)
    found = resources(compile_ahead(function, types, constants | ones, divisible, "sm_90", options))
    return {"registers": found["registers"], "spilled": found["stack"] // 4}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kept", default="/dev/null")
    options = parser.parse_args()
    with TABLE.open(newline="") as file:
        rows = list(csv.DictReader(file))
    path = Path(options.kept)
    known = dict(map(json.loads, path.read_text().splitlines())) if path.is_file() else {}
    for row in (r for r in rows if r["executor"] == "triton" and r["ms"]):
        key = " ".join(row[n] for n in SHAPE)
        if key not in known:
            known[key] = needs(row)
            with path.open("a") as file:
                file.write(json.dumps([key, known[key]]) + "\n")
        row |= known[key] | {"status": "spill" if known[key]["spilled"] > SPILLED else "ok"}
    write_rows(TABLE, list(rows[0]), rows, measured_now=False)


if __name__ == "__main__":
    main()

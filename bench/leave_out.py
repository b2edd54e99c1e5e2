"""Where a Hopper kernel's time goes: each stage of its text left out in turn, timed beside the whole.

`python bench/leave_out.py full:128:4096 evoformer:64:256`: kind, head dim and length; `warm` compiles only. What is
left computes nothing of use, it only runs. A stage is a list of substitutions on the emitted text, so that a kernel
without the stage is compiled by the same path. Run on a GPU by hand; the results are in bench/results.
"""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch

from bench.gluon_check import alive, case, in_turns, watchdog
from onepass.lowering import gluon_launch

EMIT = gluon_launch.emit
HEADS = {"evoformer": dict(batch=8, heads=256)}
STAGES = {
    "all": [],
    "exponentials": [(r"gl\.exp2\((.*)\)$", r"(\1)")],
    "maxima": [(r"row_max\(\w+, ROWS\)", "gl.full([64], 0.0, gl.float32, ROWS)")],
    "rescaling": [
        (r"^ *(\w+) = (rescaled|multiplied)\(\1, \w+\)$", ""),
        (r"added\((\w+), \w+, (\w+)\)", r"\1 + partial_sum(\2)"),
    ],
    "sums": [(r"^ *(\w+) = added\(\1, .*$", "")],
    "copies of results": [(r"^ *copy_out\(.*$", "")],
    "fences of copied tiles": [(r"^ *fence_async_shared\(\)\n( *mbarrier\.arrive)", r"\1")],
    "vectors": [(r"(\w+_tile\w*) = gl\.load\(.*$", r"\1 = gl.full([64], 0.0, gl.bfloat16, COLUMNS)")],
    "sums with copied tiles": [(r" \+ widened\(\w+_tile\w*\)(?!\[)", "")],
    "value products": [
        (r"^ *(\w+) = warpgroup_mma\(packed.*$", ""),
        (r"warpgroup_mma_wait\(1", "warpgroup_mma_wait(0"),
    ],
    "coordinates of items": [(r"quotient\((\w+), \w+, \w+\)", r"\1 * 0")],
}


def without(stage: str):
    """`emit` whose text lacks the stage."""

    def emit(*arguments):
        source = EMIT(*arguments)
        text = source.text
        for pattern, new in STAGES[stage]:
            text = re.sub(pattern, new, text, flags=re.MULTILINE)
        if stage != "all" and text == source.text:
            raise LookupError(stage)
        return replace(source, text=text)

    return emit


def launchers(kind: str, width: int, length: int) -> dict:
    sizes = HEADS.get(kind, dict(batch=4, heads=32 if width == 64 else 16))
    plan, _, values = case(kind, width, rows=length, columns=length, **sizes)
    found = {}
    for stage in STAGES:
        alive(f"{kind} {stage}")
        gluon_launch.emit = without(stage)
        launcher = gluon_launch.GluonLauncher(plan)
        try:
            launcher.results(values)
            torch.cuda.synchronize()
        except LookupError:
            continue
        except Exception as error:
            print(kind, width, stage, type(error).__name__, str(error)[-120:], flush=True)
            continue
        if launcher.refusals:
            print(kind, width, stage, launcher.refusals)
            continue
        found[stage] = lambda launcher=launcher: launcher(values)
    return found


def main(cases: list[str]) -> None:
    watchdog(110.0)
    for text in cases:
        kind, width, length = text.split(":")
        calls = launchers(kind, int(width), int(length))
        if "warm" in sys.argv or "all" not in calls:
            continue
        times = in_turns(calls, 2, 8)
        for stage, time in times.items():
            less = 1 - time / times["all"]
            said = f"{less:+.1%} without {stage}" if stage != "all" else ""
            print(f"{kind} D{width} S{length}  {time:.4f} ms  {said}")
        print(flush=True)


if __name__ == "__main__":
    main([a for a in sys.argv[1:] if a != "warm"])

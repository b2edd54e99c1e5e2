"""Where a Hopper kernel's time goes: each stage of its text left out in turn, timed beside the whole.

`python bench/leave_out.py full:128:4096 evoformer:64:256:64`: kind, head dim, length and, if not the default, heads;
`warm` compiles only. What is left computes nothing of use, it only runs. A stage is a list of substitutions on the
emitted text, so that a kernel without the stage is compiled by the same path; each tensor that the producer loads is a
stage of its own. Run on a GPU by hand; the results are in bench/results.
"""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch

from bench.gluon_check import alive, case, in_turns, watchdog
from onepass.lowering.gluon import launch

EMIT = launch.emit
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
LOADED = re.compile(r"copy_in\((\w+)_map, .*\], (\w+)\.index")


def loads(tensor: str, barrier: str) -> list[tuple[str, str]]:
    """Neither the copies of a tensor's tiles nor the waits for them."""
    return [
        (rf"^( *)copy_in\({tensor}_map.*$", r"\1pass"),
        (rf"^( *)mbarrier\.(wait|expect)\({barrier}\..*$", r"\1pass"),
    ]


def without(stage: str, texts: list[str]):
    """`emit` whose text lacks the stage; `texts` receives it."""

    def emit(*arguments):
        source = EMIT(*arguments)
        text = source.text
        for pattern, new in stages(text)[stage]:
            text = re.sub(pattern, new, text, flags=re.MULTILINE)
        if stage != "all" and text == source.text:
            raise LookupError(stage)
        texts.append(text)
        return replace(source, text=text)

    return emit


def stages(text: str) -> dict:
    return STAGES | {f"loads of {tensor}": loads(tensor, barrier) for tensor, barrier in LOADED.findall(text)}


def launchers(kind: str, width: int, length: int, heads: int | None = None) -> dict:
    sizes = HEADS.get(kind, dict(batch=4, heads=32 if width == 64 else 16))
    sizes |= {"heads": heads} if heads else {}
    plan, _, values = case(kind, width, rows=length, columns=length, **sizes)
    found, texts, waiting = {}, [], ["all"]
    while waiting:
        stage = waiting.pop(0)
        alive(f"{kind} {stage}")
        launch.emit = without(stage, texts)
        launcher = launch.GluonLauncher(plan)
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
        waiting += [other for other in stages(texts[0]) if other != "all"] if stage == "all" else []
        found[stage] = lambda launcher=launcher: launcher(values)
    return found


def main(cases: list[str]) -> None:
    watchdog(110.0)
    for text in cases:
        kind, width, length, *heads = text.split(":")
        calls = launchers(kind, int(width), int(length), *map(int, heads))
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

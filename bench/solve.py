"""Solves the schedules that ship: of the measured problems, of the tests' variants that bind, and of common forms.

`python bench/solve.py` writes lowering/schedule/solved.json anew, in some minutes: rerun it when the machine, the costs
or the constants of predictions change; with `keep`, what is there and still asked for is not solved again.
tests/lowering/schedule/test_choose_config.py solves some again.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.measured import Problem, kernel_of
from bench.settings import problems
from onepass.compiler.optimize import optimize_all
from onepass.errors import OnepassError
from onepass.graph.trace import program_of
from onepass.lowering.hopper.kernel_form import Binding, bind
from onepass.lowering.plan.records import NotPlannable
from onepass.lowering.schedule import schedule_store
from onepass.lowering.schedule.choose_config import choose
from onepass.translate.translate import translate
from tests.support.gluon_ahead_of_time import plan_of
from tests.variants import every

WIDTHS = {"full": (64, 80, 96, 128, 192, 256), "softcap": (64, 128, 256), "alibi": (64, 128, 256), "bias": (64, 128)}
WIDTHS |= {"vector": (64, 128), "gated": (64,), "documents": (64, 128), "window": (80, 96), "difference": (64,)}
LENGTHS = (1024, 4096)


class Store(dict):
    """Keeps what is solved or taken over from `before`, in the order of asking."""

    __hash__ = object.__hash__  # memoised functions take it

    def __init__(self, before: dict[str, dict]):
        self.before = before

    def read(self, key: str) -> dict | None:
        if key not in self and key in self.before:
            self[key] = self.before[key]
        return self.get(key)

    def write(self, key: str, data: dict) -> None:
        self[key] = data


def variants():
    """(name, binding) of the variants' kernels in half precision that have a Hopper form."""
    for variant in (v for v in every() if not v.refused):
        inputs = [t.bfloat16() if t.is_floating_point() else t for t in variant.inputs()]
        try:
            plan = optimize_all(translate(program_of(variant.function, *inputs)).results).plan
        except (OnepassError, NotPlannable, RuntimeError):
            continue  # not of one type in half precision, or left as written
        yield from bound(variant.name, plan)


def measured():
    """The problems of the measured table."""
    for problem in problems():
        batch, heads, length, width = problem.shape
        yield str(problem), bind(kernel_of(Problem(problem.variant, batch, heads, length, width)))


def forms():
    for kind, widths in WIDTHS.items():
        for width in widths:
            for length in LENGTHS:
                yield from bound(f"{kind} D{width} S{length}", plan_of(kind, width, rows=length, columns=length))


def bound(name: str, plan):
    found = [bind(kernel) for kernel in plan.kernels]
    return [(name, binding) for binding in found if isinstance(binding, Binding)]


def main() -> None:
    before = json.loads(schedule_store.SHIPPED.read_text()) if "keep" in sys.argv else {}
    store = Store(before)
    schedule_store.shipped_schedules = dict  # nothing ships while this runs
    schedule_store.WORK, schedule_store.ROOM = schedule_store.SHIPPED_WORK, schedule_store.SHIPPED_ROOM
    for some in (measured, variants, forms):
        for name, binding in some():
            choice = choose(binding, {}, binding.overlays, None, store=store)
            print(f"{name:34} {choice and choice.config} {choice and choice.solved}", flush=True)
        rows = (f"{json.dumps(key)}: {json.dumps(store[key], separators=(',', ':'))}" for key in sorted(store))
        schedule_store.SHIPPED.write_text("{\n" + ",\n".join(rows) + "\n}\n")
        print(f"{len(store)} schedules", flush=True)


if __name__ == "__main__":
    main()

"""The script that measures configurations, with made-up times: every row is there, and it goes on where it ended."""

import csv
import subprocess
import sys
from collections import Counter
from dataclasses import fields
from pathlib import Path

import pytest
import torch

from bench.measured import kernel_of, point, possible, predicted
from bench.settings import (
    EXECUTORS,
    gluon_configuration,
    gluon_setting,
    launched,
    plain,
    problems,
    row_of,
    shapes,
    varied,
)
from onepass.compiler.optimize import optimize
from onepass.graph.trace import program_of
from onepass.lowering.hopper.config import HopperConfig
from onepass.lowering.schedule.kernel_time import problem_of, seconds
from onepass.lowering.schedule.schedule_store import anonymous
from onepass.translate.translate import translate
from onepass.tune.kernel_space import configuration

SCRIPT = Path(__file__).resolve().parents[2] / "bench" / "configurations.py"


def run(out: Path, *more: str) -> list[dict]:
    options = ("--pretend", "--out", str(out), "--workers", "2", "--executors", "triton")
    command = [sys.executable, str(SCRIPT), *options, *more]
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
    with out.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.slow
def test_a_table_is_measured_in_two_runs(tmp_path):
    out = tmp_path / "table.csv"
    first = run(out, "--variants", "window", "--most", "40")
    rows = run(out, "--variants", "window")
    assert len(first) == 40 and rows[:40] == first, "what was measured stays"
    key = lambda r: tuple(list(r.values())[:12])
    assert len({key(r) for r in rows}) == len(rows) == 84
    found = Counter(r["status"] for r in rows)
    assert found["ok"] and found["crash"] and found["wrong"] and found["out of resource"]
    assert all(bool(r["ms"]) == (r["status"] in ("ok", "spill")) for r in rows)
    assert run(out, "--variants", "window") == rows, "nothing is measured twice"


# What is measured ----------------------------------------------------------------------------------------------------

VARIANTS = {(p.variant, p.width): p for p in problems() if p.width == 64}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("problem", VARIANTS.values(), ids=lambda p: p.variant)
def test_the_kernel_that_is_predicted_is_the_one_that_is_derived(problem):
    """The table's kernels are made without the search; work, values and registers are those of the found plan."""
    inputs = (torch.empty(shape, dtype=torch.bfloat16) for shape in shapes(problem).values())
    (found,) = optimize(*derivation(plain(problem), *inputs)).plan.kernels
    made, c = kernel_of(row_of(problem)), HopperConfig(2, 64, 2)
    said = [anonymous(problem_of(kernel, kernel.loops[0], c)) for kernel in (found, made)]
    assert said[0].work() == said[1].work()
    assert sorted(v.registers for v in said[0].values) == sorted(v.registers for v in said[1].values)
    assert predicted(row_of(problem), c) == pytest.approx(seconds(found, c), rel=0.02)


def derivation(function, *inputs):
    captured = translate(program_of(function, *inputs))
    return captured.term, captured.output, captured.order


@pytest.mark.sampled(1)
@pytest.mark.parametrize("problem", VARIANTS.values(), ids=lambda p: p.variant)
def test_defaults_and_all_that_differ_from_them_in_one_setting_are_measured(problem):
    settings, row = EXECUTORS["gluon"][0](problem), row_of(problem)
    default = launched(row)
    assert gluon_setting(default) in settings
    allowed = possible(row)
    near = [c for c in varied(launched(row)) if allowed.allows(point(c))]
    names = [f.name for f in fields(HopperConfig)]
    assert {n for n in names for c in near if getattr(c, n) != getattr(default, n)} >= {"late", "send"}
    assert set(map(gluon_setting, near)) <= set(settings)


def test_a_setting_and_its_row_are_one():
    for c in map(configuration, possible(row_of(VARIANTS["full", 64]))):
        s = gluon_setting(c)
        assert gluon_configuration(s.rows, s.loop, s.stages, s.more) == c

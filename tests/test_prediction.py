"""Predicted times order measured configurations; what cannot fit is known before; a schedule becomes settings."""

from dataclasses import fields, replace
from math import inf

import pytest

from bench.fit_prediction import FITTED, configuration, kendall, kernel_of, measured, predicted, shape_of
from onepass.lowering.build import build_plan
from onepass.lowering.gluon_schedule import Schedule as Skeleton
from onepass.lowering.schedule.knobs import NotRunnable, knobs
from onepass.lowering.schedule.predict import Configuration, problem_of, seconds, shared_bytes, steps
from onepass.lowering.schedule.problem import Schedule
from onepass.lowering.schedule.rewrite import subtiled
from tests.attention_terms import attention
from tests.test_schedule import alone, alternating

CELLS = measured()
RIGHT = [cell for cell in CELLS if cell["status"] == "ok"]
SHAPES = list(dict.fromkeys(map(shape_of, RIGHT)))
NOISE = 0.02  # two times nearer than this have no order: it is what repeated runs differ by


@pytest.mark.parametrize("shape", [s for s in SHAPES if s != ("4096", "256")], ids="-".join)
def test_predictions_order_what_was_measured(shape):
    cells = [c for c in RIGHT if shape_of(c) == shape]
    assert len(cells) >= 12
    assert kendall(cells, NOISE) >= 0.8, "fitted" if shape in FITTED else "held out"


def test_the_best_predicted_is_nearly_the_best_measured():
    for shape in SHAPES:
        cells = [c for c in RIGHT if shape_of(c) == shape]
        chosen = min(cells, key=predicted)
        assert float(chosen["ms"]) <= 1.05 * min(float(c["ms"]) for c in cells), shape


def test_predicted_times_are_times():
    for cell in RIGHT:
        assert 0.8 < predicted(cell) / float(cell["ms"]) < 1.25


@pytest.mark.parametrize("cell", CELLS, ids=lambda c: "-".join((*shape_of(c), c["executor"], c["rows"], c["loop"])))
def test_what_does_not_fit_is_known(cell):
    kernel = kernel_of(*(int(cell[n]) for n in ("batch", "heads", "length", "width")))
    chosen = configuration(cell)
    needed = shared_bytes(problem_of(kernel, kernel.loops[0], chosen), chosen)
    fits = cell["status"] != "out of resource"
    assert (seconds(kernel, chosen) < inf) == fits
    assert fits or needed == int(cell["shared_kib"]) * 1024


def test_masks_shorten_the_prediction():
    chosen, found = Configuration("ptr", 128, 64, 8, 3), {}
    for mask in ("none", "causal", "window"):
        case = attention((1, 8), 4096, 4096, 64, dtype="bfloat16", mask=mask)
        kernel = build_plan(case.term, case.output, case.order).kernels[0]
        found[mask] = steps(kernel, kernel.loops[0], chosen), seconds(kernel, chosen)
    assert found["none"][0] == [64] * 32
    assert found["causal"][0] == [2 * (n + 1) for n in range(32)]
    assert max(found["window"][0]) == 3  # 128 rows and 37 columns before them
    assert found["none"][1] > 1.5 * found["causal"][1] > 3 * found["window"][1]


# Settings ------------------------------------------------------------------------------------------------------------


def test_two_sub_tiles_are_two_warpgroups_that_take_turns():
    found = knobs(*alternating(), columns=128)
    assert (found.consumers, found.depth, found.turns, found.prefetch, found.registers) == (2, 2, True, False, 240)
    assert [name.split()[0] for name in found.order] == ["product", "accumulate"] * 2
    assert set(found.skeleton()) < {f.name for f in fields(Skeleton)}
    assert Skeleton(**found.skeleton()).consumers == 2


def test_one_warpgroup_takes_no_turns():
    found = knobs(*alone(), columns=128)
    assert (found.consumers, found.turns) == (1, False)


def test_a_wrong_or_missing_schedule_has_no_settings():
    problem, schedule = alternating()
    with pytest.raises(NotRunnable, match="below the bound"):
        knobs(problem, replace(schedule, interval=15), 128)
    with pytest.raises(NotRunnable, match="infeasible"):
        knobs(problem, Schedule("infeasible"), 128)
    with pytest.raises(NotRunnable, match="not those of the problem"):
        knobs(subtiled(alone()[0], 3), schedule, 128)

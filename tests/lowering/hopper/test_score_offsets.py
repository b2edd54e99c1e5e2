"""Gauges taken apart into scores, columns and rows: the parts' sum is the gauge, whatever tile it is split at."""

import numpy as np
import pytest

from onepass.egraph.terms.evaluate import evaluate
from onepass.egraph.terms.ops import cast, const, iota, load, reduce
from onepass.egraph.terms.term import Dim, Tensor
from onepass.lowering.hopper.score_offsets import split
from tests.support.gluon_ahead_of_time import plan_of

ROWS, LOOP, INNER, HEAD = Dim("i", 12), Dim("j", 20), Dim("d", 4), Dim("h", 3)
I, J, H = iota(ROWS), iota(LOOP), iota(HEAD)
QUERIES, KEYS = (load(Tensor(n, "float32", (d.size, 4)), iota(d), iota(INNER)) for n, d in (("x", ROWS), ("y", LOOP)))
SCORE = reduce("sum", INNER, QUERIES * KEYS)
SLOPE = load(Tensor("slopes", "float32", (3,)), H)
FAR = load(Tensor("far", "float32", (12,)), I)
REAL = lambda x: cast(x, "float32")
GAUGES = {
    "slope of a difference": SCORE * 0.5 + SLOPE * REAL(J - I),
    "coordinates taken apart": SCORE - SLOPE * (REAL(J) - REAL(I)) * 3.0,
    "behind a factor": (SCORE * 0.5 + REAL(const(2) * J - I + const(7)) * SLOPE) * -0.7,
    "a column of its own": SCORE + REAL(J),
    "a row of its own": SCORE * 2.0 - FAR + REAL(I),
    "two slopes and a row": SCORE + SLOPE * REAL(J) - REAL(const(4) * I + H) * 0.25 + FAR * -REAL(J - H),
}
APART = {"two slopes and a row": 2}  # numbers of scores that stay: a slope that rows differ in is one


@pytest.mark.parametrize("name", GAUGES)
@pytest.mark.parametrize("start", [0, 8])
def test_parts_sum_to_the_gauge(name, start):
    random, dims = np.random.default_rng(0), [HEAD, ROWS, LOOP]
    values = {t: random.standard_normal(s) for t, s in {"x": (12, 4), "y": (20, 4), "slopes": 3, "far": 12}.items()}
    value = lambda term: np.broadcast_to(evaluate(term, values, dims, {}), (3, 12, 20))
    parts = split(GAUGES[name], ROWS, LOOP)
    total = sum(c * value(term) for c, term in (*parts.scores, *parts.rows))
    for slope in parts.slopes:
        unit = slope.constant * np.prod([value(o) for o in slope.others], axis=0)
        row = value(sum((atom * const(c) for atom, c in slope.rest[0].items()), const(slope.rest[1])))
        total = total + unit * (row + slope.step * start) + unit * slope.step * (np.arange(20) - start)
    np.testing.assert_allclose(total, value(GAUGES[name]), rtol=1e-12, atol=1e-12)
    assert len(parts.scores) == APART.get(name, 1) and (parts.slopes or parts.rows)
    assert all(not term.dims & {LOOP} for _, term in parts.rows)


@pytest.mark.parametrize("gauge", [SCORE, SCORE * 0.5, FAR * REAL(J), SCORE + REAL(J % const(5)), REAL(J - I)])
def test_what_has_no_part_of_its_own_stays(gauge):
    assert split(gauge, ROWS, LOOP) is None


@pytest.mark.parametrize("kind", ["alibi", "slanted"])
def test_slopes_leave_the_scores_of_captured_programs(kind):
    (kernel,) = plan_of(kind, 64, rows=256, columns=256).kernels
    (state,) = kernel.loops[0].accumulators
    parts = split(state.gauge, kernel.rows, kernel.loops[0].dim)
    assert len(parts.scores) == len(parts.slopes) == 1 and len(parts.rows) == (kind == "slanted")

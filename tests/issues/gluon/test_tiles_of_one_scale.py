"""A row's scale in base 2 was rounded in one place and taken whole by a multiply-add in another: tiles of scores near
1e8 that have one scale weighed unlike, by up to 2^8."""

from pathlib import Path

import numpy as np
import pytest

from onepass.lowering.plan import records
from tests.support.gluon_ahead_of_time import plan_of, source_of

FLOAT = np.float32


def unit_of(scale):
    return np.where(np.abs(scale) > FLOAT(2**27), FLOAT(1), FLOAT(1.4426950408889634))


def level_of(scale):
    return FLOAT(scale * unit_of(scale))


def decay_of(before, scale):
    same = unit_of(before) == unit_of(scale)
    return np.exp2(np.where(same, level_of(before) - level_of(scale), (before - scale) * FLOAT(1.4426950408889634)))


def test_a_scale_is_rounded_before_anything_is_taken_from_it():
    text = source_of(plan_of("bias", 64))[2].text
    assert "level_of(shift" in text and "decay_of(" in text
    parts = Path(records.__file__).parents[1] / "gluon/device_functions.py"
    assert "mul.rn.f32 $0, $1, $2;" in parts.read_text(encoding="utf-8")


@pytest.mark.parametrize("size", [1.0, 3e2, 1e5, 1e7, 1.3e8, 1.34e8, 1e10])
@pytest.mark.parametrize("steps", [0, 1, 3])
def test_what_two_tiles_weigh(size, steps):
    """Both with their largest score at weight 1: the first one's share of the sum is e to the scales' difference."""
    before, scale = FLOAT(-size), FLOAT(-size)
    for _ in range(steps):
        scale = np.nextafter(scale, FLOAT(np.inf))
    first = np.exp2(np.float64(before) * np.float64(unit_of(before)) - level_of(before)) * decay_of(before, scale)
    second = np.exp2(np.float64(scale) * np.float64(unit_of(scale)) - level_of(scale))
    wanted = np.exp(np.float64(before) - np.float64(scale))
    np.testing.assert_allclose(first / (first + second), wanted / (wanted + 1), rtol=2e-3, atol=1e-6)

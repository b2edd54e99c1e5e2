"""A loop of Gluon read any address for a position that is out of range, or stopped at each element in twice the time
without that. Now such a number is NaN, and so is each row that it counts in. Other rows are what they were, and of what
a mask drops nothing is known.
"""

import numpy as np
import pytest
import torch

from onepass.compiler.verified_kernels import checks, factors
from onepass.lowering.hopper.config import HopperConfig
from onepass.lowering.launch.triton_compat import gluon_missing
from onepass.proofs.texts.check import differences, run
from tests.proofs.texts.test_check import plan_of
from tests.support.on_hopper import hopper_texts, pretend_hopper

pytestmark = pytest.mark.skipif(gluon_missing() is not None, reason="needs Gluon")
ENTRIES, LENGTH, HEADS, WIDTH = 50, 200, 2, 16
ROW, KEY = 130, 77  # of the position that is out of range


def by_pair(q, k, v, table, index):
    return (q @ k.mT / 4 + table[index]).softmax(-1) @ v


def by_key(q, k, v, table, index):
    return (q @ k.mT / 4 + table[index[0]]).softmax(-1) @ v


def causal(q, k, v, table, index):
    i = torch.arange(LENGTH)
    return (q @ k.mT / 4 + table[index]).masked_fill(i > i[:, None], -torch.inf).softmax(-1) @ v


def computed(function, row, key, wild, monkeypatch):
    """The check of the launch, and its result."""
    pretend_hopper(monkeypatch)
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 1, HEADS, LENGTH, WIDTH).bfloat16()
    index = torch.randint(-ENTRIES, ENTRIES, (LENGTH, LENGTH))
    if wild is not None:
        index[row, key] = wild
    plan = plan_of(function, [q, k, v, torch.randn(ENTRIES).bfloat16(), index])
    texts = hopper_texts(*plan, HopperConfig(consumers=2, loop_tile=64))
    ((_, checked),) = checks(texts, 2**60, factors(texts)[0])
    assert "def producer" in checked.calls[0].text
    assert ("nearest(" in checked.calls[0].text) == (function is not causal), "where a mask is, a load has it"
    result = run(checked)["output"].data.shadow
    return checked, np.asarray(result).reshape(HEADS, LENGTH, WIDTH)


WILD = [ENTRIES, -ENTRIES - 1, 2**40]


@pytest.mark.parametrize("wild", WILD)
@pytest.mark.parametrize(
    "function, row, key, lost",
    [
        (by_pair, ROW, KEY, [ROW]),
        (by_key, 0, KEY, range(LENGTH)),
        (causal, ROW, KEY, [ROW]),
        (causal, KEY, ROW, []),  # masked
    ],
)
def test_a_row_is_nan_where_such_a_number_counts(function, row, key, lost, wild, monkeypatch):
    checked, right = computed(function, row, key, None, monkeypatch)
    assert differences(checked) == [] and np.isfinite(right).all()
    _, found = computed(function, row, key, wild, monkeypatch)
    others = np.setdiff1d(np.arange(LENGTH), lost)
    assert np.isnan(found[:, list(lost)]).all() and np.array_equal(found[:, others], right[:, others])

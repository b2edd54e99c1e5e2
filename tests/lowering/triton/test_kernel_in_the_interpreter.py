"""Columns of a tile are combined as Triton's interpreter combines its elements: the same bits, in the same order."""

from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("triton")
import triton.language as tl
from triton.runtime.interpreter import ReduceOps, TensorHandle

from tests.support.interpreter_reductions import column_by_column, element_by_element


def tensor(values, dtype):
    return tl.core.tensor(TensorHandle(values, dtype), tl.block_type(dtype, list(values.shape)))


def larger(score, place, other, its_place):
    """Not commutative, so that the order is seen: of equal scores the second is taken."""
    data = [x.handle.data for x in (score, place, other, its_place)]
    first = data[0] > data[2]
    pick = lambda a, b: np.where(first, a, b)
    return tuple(
        tl.core.tensor(TensorHandle(pick(a, b), x.dtype.scalar), x.type)
        for a, b, x in ((data[0], data[2], score), (data[1], data[3], place))
    )


@pytest.mark.parametrize("keep_dims", [False, True])
@pytest.mark.parametrize("shape, axis", [((4, 8), 1), ((4, 8), 0), ((2, 8, 4), 1), ((8,), 0), ((4, 1), 1)])
def test_columns_are_combined_as_elements_are(shape, axis, keep_dims):
    scores = np.random.default_rng(0).integers(0, 3, shape).astype(np.float32)
    scores.flat[::3] = np.nan
    places = np.indices(shape)[axis].astype(np.int32)
    given = (tensor(scores, tl.float32), tensor(places, tl.int32))
    reduction = ReduceOps(axis, SimpleNamespace(fn=larger), keep_dims)
    for mine, theirs in zip(column_by_column(reduction, given), element_by_element(reduction, given), strict=True):
        np.testing.assert_array_equal(mine.handle.data, theirs.handle.data)
        assert mine.handle.data.dtype == theirs.handle.data.dtype and mine.shape == theirs.shape

"""Triton's interpreter combines by a function of two numbers one element after the other; here one column of all rows.

The order along the axis is the interpreter's own, so the results are the same, bit by bit, and a tile of 32 rows takes
a thirtieth of the time.
"""

import numpy as np
from triton.runtime.interpreter import ReduceOps

element_by_element = ReduceOps.generic_reduce


def column_by_column(self: ReduceOps, given: tuple) -> list:
    """What `ReduceOps.generic_reduce` gives; by that where a tile has one row or is flattened first."""
    if self.axis is None or given[0].handle.data.ndim < 2:
        return element_by_element(self, given)
    columns = [np.moveaxis(x.handle.data, self.axis, 0) for x in given]
    at = lambda place: tuple(self.to_tensor(c[place], x.dtype) for c, x in zip(columns, given, strict=True))
    total = at(0)
    for place in range(1, len(columns[0])):
        found = self.combine_fn.fn(*total, *at(place))
        total = found if isinstance(found, tuple) else (found,)
    kept = [np.expand_dims(t.handle.data, self.axis) if self.keep_dims else t.handle.data for t in total]
    return [self.to_tensor(data, x.dtype) for data, x in zip(kept, given, strict=True)]


def install() -> None:
    """Lets the interpreter of this process reduce by columns."""
    ReduceOps.generic_reduce = column_by_column

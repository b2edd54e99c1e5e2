"""Products that a tile sums chunk by chunk, since their summed dim is too long to be held whole.

Only loops that keep one number for each row do that: beside an accumulator of values, a tile reads their matrix whole.
Example: Σ_d x[i, d] · w[j, d] over 4096 places d, for the log-sum-exp over j, in chunks of 64 places.
"""

from __future__ import annotations

from collections.abc import Iterable

from ...egraph.terms.term import Dim, Term
from ...egraph.terms.traversal import reduces
from ..plan.queries import states_of
from ..plan.records import Kernel
from ..plan.thresholds import MAX_RESIDENT_ELEMENTS
from .dim_roles import is_long, only_indexes

BYTES_OF_A_CHUNK = 128  # of a row of a matrix: the widest pattern of shared memory
BYTES = {"float16": 2, "bfloat16": 2, "float64": 8}  # of a number; of others 4


def chunks(kernel: Kernel, nodes: Iterable[Term]) -> dict[Dim, int]:
    """The dims that the kernel's products sum chunk by chunk, with the places of a chunk."""
    rows = {*kernel.grid, *kernel.tiled, *kernel.around}
    if not keeps_numbers(kernel):
        return {}
    every = list(nodes)
    placed = {*rows, *(loop.dim for loop in kernel.loops), *(d for store in kernel.stores for d in store.order)}
    sums: dict[Dim, list[Term]] = {}
    for r in (n for n in every if n.op == "reduce" and n.attrs[1] not in placed):
        sums.setdefault(r.attrs[1], []).append(r)
    fitting = (d for d in sorted(sums) if is_long(d, MAX_RESIDENT_ELEMENTS) and all(map(_is_in_chunks, sums[d])))
    return {d: BYTES_OF_A_CHUNK // _widest(d, every) for d in fitting}


def keeps_numbers(kernel: Kernel) -> bool:
    """Whether loops keep one number for each row, as a log-sum-exp does, and no values."""
    return all(state.dims <= {*kernel.grid, *kernel.tiled, *kernel.around} for state in states_of(kernel))


def _is_in_chunks(r: Term) -> bool:
    """Whether a reduction is the innermost sum of floats along a static dim."""
    monoid, dim = r.attrs
    if monoid != "sum" or "float" not in r.dtype or not isinstance(dim.size, int):
        return False
    return not reduces(r.args[0]) and only_indexes(r.args[0], dim)


def _widest(dim: Dim, nodes: Iterable[Term]) -> int:
    """Bytes of the widest number that is read along the dim."""
    return max((BYTES.get(n.dtype, 4) for n in nodes if n.op == "load" and dim in n.dims), default=4)

"""The guard of a kernel in two parts: a packed mask, one bit for each score, and what is tested beside it.

A mask is packed only where the bits take less memory than the tensors that they are made of.
Example: an element-wise mask of rows and columns is packed; `column <= row` beside it stays a test.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod

import torch

from ...egraph.terms.sizes import resolve
from ...egraph.terms.term import Dim, Tensor, Term
from ...egraph.terms.traversal import subterms
from ..masks.loop_ranges import conjunction, conjuncts
from ..masks.mask_bits import PackedTiling
from ..plan.device import H200
from ..plan.records import BlockMap
from .kernel_form import Binding


@dataclass(frozen=True)
class Packed:
    """A guard in two parts: what is packed, as a block map's record, and what is tested beside it, None if nothing.

    sources: the tensors that the packed part reads by all of its dims.
    """

    record: BlockMap
    rest: Term | None
    sources: tuple[Tensor, ...]

    def bound(self, binding: Binding) -> Binding:
        """The binding with only the rest to be tested."""
        loop = replace(binding.loop, guard=self.rest)
        return replace(binding, kernel=replace(binding.kernel, loops=(loop,)), loop=loop)


@lru_cache(maxsize=256)
def packed(binding: Binding) -> Packed | None:
    """The parts of a guard; None where it reads no tensor by row and column.

    What is tested beside the bits has dims that they lack: with these there would be more bits than elements of any
    input.
    """
    rows, loop = binding.kernel.rows, binding.loop
    if loop.map is None:
        return None
    conditions = conjuncts(loop.guard)
    dims = frozenset(d for c in conditions if _loads_over(c, {rows, loop.dim}) for d in c.dims)
    if not dims:
        return None
    mine = conjunction(c for c in conditions if c.dims <= dims)
    sources = tuple(n.attrs[0] for n in _loads_over(mine, {rows, loop.dim}) if n.dims == dims)
    if not sources:
        return None
    record = replace(loop.map, guard=mine, dims=tuple(d for d in loop.map.dims if d in dims))
    return Packed(record, conjunction(c for c in conditions if not c.dims <= dims), sources)


def _loads_over(term: Term, dims: set[Dim]) -> list[Term]:
    """The loads in a term that have all of these dims."""
    return [n for n in subterms(term) if n.op == "load" and dims <= n.dims]


def bits_of(packed: Packed, sizes: Mapping[str, int]) -> int:
    """How many bits the packed mask has."""
    words = PackedTiling(packed.record, H200.product_rows, H200.product_rows, tuple(sorted(sizes.items())))
    return prod(map(words.length, (*packed.record.dims, *packed.record.rows, packed.record.loop)))


def small(packed: Packed, values: Mapping[str, torch.Tensor], sizes: Mapping[str, int]) -> bool:
    """Whether some input takes more memory than the bits. A view that repeats a small tensor does not."""
    held = max(values[t.name].untyped_storage().nbytes() for t in packed.sources)
    return bits_of(packed, sizes) <= 8 * held


def fine(packed: Packed, sizes: Mapping[str, int]) -> bool:
    """Whether the mask is element-wise rather than block-wise, judged by shapes alone."""
    elements = max(prod(resolve(size, sizes) for size in t.shape) for t in packed.sources)
    return bits_of(packed, sizes) <= 8 * elements

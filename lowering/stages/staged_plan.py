"""Which stages a plan runs in: its kernels, its large plain products by torch, and parts of one dim.

Invariant: what is chosen goes by the plan and its sizes alone. Example: the backward of a layer with its cross entropy
runs in parts of the words, as all scores at once would take 500 MiB.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import prod

import torch

from ...egraph.terms.sizes import resolve
from ...egraph.terms.term import Tensor
from ..plan.records import Plan
from ..plan.thresholds import MAX_STORED_BYTES
from ..readback.check_plan import differs
from .dim_parts import DimParts, dim_parts
from .plain_products import columns_of_product, plain_product, sizes_are_numbers
from .stored_factors import with_stored_factors

GRANULE = 128  # elements of a dim: parts are multiples of a tile of a product
TIMES_OF_SUMS = 2  # as many bytes a part stores at least, as each part reads and writes the sums
PARTS_AND_SUMS = 2  # times what a plan may store at once: a part, and sums over parts
LEAST_OF_A_PART = 512  # elements that keep a GPU busy with the products of a part


@dataclass(frozen=True)
class Staged:
    """A plan that runs in stages. parts: of which dim, None for all at once; count: elements of a part."""

    plan: Plan
    parts: DimParts | None
    count: int = 0

    @property
    def products(self) -> tuple[str, ...]:
        """The names of what torch's products give."""
        return tuple(k.output.name for k in self.plan.kernels if plain_product(k) is not None)

    def __str__(self) -> str:
        said = f"{', '.join(self.products)} by torch's products of matrices"
        number = 1 if self.parts is None else -(-self.parts.size // self.count)
        if self.parts is None or number == 1:
            return said
        return f"{said}, in {number} parts of a dim of {self.parts.size}, so that little is stored between kernels"


@lru_cache(256)
def staged(plan: Plan) -> Staged | None:
    """The stages of a plan; None for one that has no large plain product, or sizes that are symbols."""
    if plan.piece or all(columns_of_product(kernel) is None for kernel in plan.kernels):
        return None
    found = with_stored_factors(plan)
    if found is not plan and differs(found, plan):
        found = plan
    if not any(plain_product(kernel) for kernel in found.kernels) or not sizes_are_numbers(found.kernels):
        return None
    return _in_parts(found)


def _in_parts(plan: Plan) -> Staged:
    """The plan in parts of the dim that leaves least in memory, where all at once would leave much."""
    between = plan.parts
    if sum(map(_bytes, between)) <= MAX_STORED_BYTES:
        return Staged(plan, None)
    axes = ((t, n) for t in between for n, size in enumerate(t.shape) if resolve(size, {}) >= 2 * LEAST_OF_A_PART)
    options = [found for found in (dim_parts(plan, *axis) for axis in axes) if found is not None]
    made = [Staged(plan, found, _elements_of_a_part(plan, found)) for found in options]
    return min(made, key=_held, default=Staged(plan, None))


def _elements_of_a_part(plan: Plan, parts: DimParts) -> int:
    """As many as leave little in memory beside inputs and results, or as keep a GPU busy."""
    each = sum(_bytes(t) for t in plan.parts if t.name in parts.axes) / parts.size
    count = max(LEAST_OF_A_PART, int(max(MAX_STORED_BYTES, TIMES_OF_SUMS * _bytes_of_sums(plan, parts)) / each))
    return min(parts.size, -(-count // GRANULE) * GRANULE)


def has_room(plan: Plan, sizes: Mapping[str, int], needed: float) -> bool:
    """Whether a plan stores little between its kernels, beside bytes of inputs and results that are needed anyway.

    sizes: values of symbols, with which all is stored at once.
    """
    if (held := held_in_parts(plan)) is not None:
        return held <= PARTS_AND_SUMS * max(MAX_STORED_BYTES, needed)
    found = staged(plan)
    between = (plan if found is None else found.plan).parts
    return sum(_bytes(t, sizes) for t in between) <= max(MAX_STORED_BYTES, needed)


def held_in_parts(plan: Plan) -> float | None:
    """Bytes in memory, beside inputs and results, while a plan runs in parts of a dim; None where it does not."""
    found = staged(plan)
    return None if found is None or found.parts is None else _held(found)


def _held(what: Staged) -> float:
    """Bytes in memory while parts run: of a part, of what is stored as a whole, and of sums in float32."""
    plan, parts = what.plan, what.parts
    assert parts is not None
    whole = {t.name for kernel in parts.after for t in kernel.inputs}
    share = lambda t: what.count / parts.size if t.name in parts.axes and t.name not in whole else 1
    stored = sum(_bytes(t) * share(t) for t in plan.parts if t.name not in parts.summed)
    return stored + _bytes_of_sums(plan, parts)


def _bytes_of_sums(plan: Plan, parts: DimParts) -> int:
    """Of what is added up over parts, in float32."""
    outputs = [s.output for k in plan.kernels for s in k.stores if s.output.name in parts.summed]
    return sum(4 * prod(resolve(size, {}) for size in t.shape) for t in outputs)


def _bytes(tensor: Tensor, sizes: Mapping[str, int] | None = None) -> int:
    return getattr(torch, tensor.dtype).itemsize * prod(resolve(size, sizes or {}) for size in tensor.shape)

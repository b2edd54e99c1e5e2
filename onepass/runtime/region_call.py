"""The kind of a call of a region: values of its symbolic sizes, and the dtype, shape and strides of each result.

Calls of one kind share what was prepared for the first one. `unfit` says why no plan runs at some sizes.
Example: a plan whose lengths are symbols does not run where one of them is 0.

A call may be one of `onepass.plan`. While that prepares, what is compiled, compared, timed or left to the original
calls is noted for it; once it is sealed, the same raises NotPrepared. Other calls do not notice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from threading import local
from typing import cast

import torch
from torch.autograd import forward_ad

from ..compiler.compiled_region import Carried, Fused
from ..egraph.terms.sizes import value_of
from ..egraph.terms.term import Term
from ..egraph.terms.traversal import all_dims, subterms
from ..errors import NotPrepared
from ..graph.program import Meta
from ..lowering.plan.records import Plan, Store

NO_SIZES = "one is zero or negative, and to a plan they are sizes"
BEYOND = "places would be beyond a table"
Tensors = Sequence[torch.Tensor]
ResultKind = tuple[torch.dtype, tuple[int, ...], tuple[int, ...] | None]  # dtype, shape, strides


@dataclass(frozen=True)
class RegionCall:
    """What calls of one kind share. deterministic: each gives the same bits, so no sum is in an order of chance."""

    sizes: dict[str, int]
    results: tuple[ResultKind, ...]
    deterministic: bool = False


def call_of(known: Fused | Carried, tensors: Tensors, numbers: Sequence[int]) -> RegionCall:
    """The kind of a call. `numbers` are the sizes that no tensor states, in the order of the program's symbols."""
    sizes = all_sizes(known, tensors, numbers)
    metas = known.program.output_metas
    strides = known.strides or (None,) * len(metas)
    results = (
        (getattr(torch, meta.dtype), _values(meta.shape, sizes), None if steps is None else _values(steps, sizes))
        for meta, steps in zip(metas, strides, strict=True)
    )
    return RegionCall(sizes, tuple(results), is_deterministic(known))


def is_deterministic(known: Fused | Carried) -> bool:
    """Whether the user asks for the same bits in each call: by an option, or now, of torch."""
    return known.options.deterministic or torch.are_deterministic_algorithms_enabled()


def has_tangent(value: object) -> bool:
    """Whether this is a tensor that carries a tangent, at an open level of dual numbers."""
    is_open = forward_ad._current_level >= 0
    return is_open and isinstance(value, torch.Tensor) and forward_ad.unpack_dual(value).tangent is not None


def fake_results(metas: Sequence[Meta], call: RegionCall, tensors: Tensors) -> list[torch.Tensor]:
    """Empty results of a call, on the devices that the metas name."""
    return [_fake(meta.device, kind, tensors) for meta, kind in zip(metas, call.results, strict=True)]


def _fake(device: str, kind: ResultKind, tensors: Tensors) -> torch.Tensor:
    dtype, shape, strides = kind
    like = next((t for t in tensors if t.device.type == device), tensors[0])
    if strides is None:
        return like.new_empty(shape, dtype=dtype)
    return like.new_empty_strided(shape, strides, dtype=dtype)


def all_sizes(known: Fused | Carried, tensors: Tensors, numbers: Sequence[int]) -> dict[str, int]:
    """Every symbolic size of the region: those that a tensor's axis states, and `numbers`."""
    stated = {s for i in known.program.inputs for s in i.meta.shape}
    free = [s for s in known.program.symbols if s not in stated]
    return {**known.program.sizes_of(tensors), **dict(zip(free, numbers, strict=True))}


def _values(sizes: Sequence[int | str], known: Mapping[str, int]) -> tuple[int, ...]:
    """The values; of symbols while a graph is traced, which an integer made of them would fix to one size."""
    return tuple(cast(int, value_of(s, known)) for s in sizes)


def unfit(found: Fused, call: RegionCall) -> str:
    """Why the plan does not run at the sizes of a call; "" if it does."""
    if not _are_lengths_positive(found.plan, call.sizes):
        return NO_SIZES
    return "" if all(within.holds(call.sizes) for within in found.required) else BEYOND


def _are_lengths_positive(plan: Plan, sizes: Mapping[str, int]) -> bool:
    """Whether every length and divisor is positive, and no other number is negative."""
    if min(sizes.values(), default=1) > 0:
        return True
    lengths, divisors = _lengths(plan)
    divided = any(sizes.get(name, 1) <= 0 for name in divisors)
    return min(sizes.values()) >= 0 and not divided and all(value_of(n, sizes) > 0 for n in lengths)


@lru_cache(maxsize=256)
def _lengths(plan: Plan) -> tuple[frozenset[int | str], frozenset[str]]:
    """The lengths of all tensors and dims of a plan, and the symbols of sizes that something is divided by."""
    stores = [store for kernel in plan.kernels for store in kernel.stores]
    tensors = (*plan.inputs, *(store.output for store in stores))
    lengths = {length for tensor in tensors for length in tensor.shape}
    lengths |= {dim.size for store in stores for dim in (*store.order, *all_dims(store.term))}
    return frozenset(lengths), frozenset(_divisors(stores))


def _divisors(stores: Sequence[Store]) -> set[str]:
    """Symbols of sizes by which an index is divided."""
    nodes = {node for store in stores for node in subterms(store.term)}
    divisors: set[Term] = {node.args[1] for node in nodes if node.op in ("floordiv", "mod")}
    return {node.attrs[0] for divisor in divisors for node in subterms(divisor) if node.op == "size"}


# Calls of `onepass.plan` ----------------------------------------------------------------------------------------------


class PlannedCalls:
    """What the calls of one plan met: how often something was prepared, and why original calls ran."""

    def __init__(self) -> None:
        self.sealed = False
        self.prepared = 0
        self.fallbacks: list[str] = []


class _Calling(local):
    planned: PlannedCalls | None = None


CALLING = _Calling()  # `planned`: of the plan whose call this thread runs


def prepares(what: str) -> None:
    """Notes that something is compiled, compared or timed. Raises NotPrepared in a call of a sealed plan."""
    planned = CALLING.planned
    if planned is None:
        return
    if planned.sealed:
        raise NotPrepared(f"{what} would be compiled, compared or timed, and this plan's calls do none of it")
    planned.prepared += 1


def falls_back(reason: str) -> None:
    """Notes that original calls run for this reason. Raises NotPrepared in a call of a sealed plan."""
    planned = CALLING.planned
    if planned is None:
        return
    if planned.sealed:
        raise NotPrepared(f"the original calls would run: {reason}")
    planned.fallbacks.append(reason)


def is_sealed() -> bool:
    """Whether this thread runs a call of a sealed plan."""
    return CALLING.planned is not None and CALLING.planned.sealed

"""Holds the texts of a plan's kernels against the plan's terms, over exact numbers, before they run.

Integers and bools, which masks are made of, are those of the call. Other inputs are random numbers, so that what is
equal is not equal by chance. Where a kernel is large, some of its programs run. Example:
`complaints(TRITON.texts(plan, tensors, sizes))` is empty if each text computes its terms.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ..egraph.terms.sizes import resolve
from ..egraph.terms.traversal import all_dims
from ..lowering.plan.records import Kernel

if TYPE_CHECKING:
    from ..lowering.triton.launch_texts import KernelTexts
    from ..proofs.kernels.check import Checked

MOST_PRODUCTS = 2**27  # points of all dims of a kernel at which all its programs run
FEWEST_PROGRAMS = 3  # the first one, the last one and one between
LARGE = 1e4  # a number beyond it is a mask's: it stays
SEED = 20


def complaints(texts: Sequence[KernelTexts]) -> list[str]:
    """What texts do otherwise than their terms say, each with its kernel's name; none if they are equal."""
    from ..proofs.kernels.check import differences

    return [f"{one.kernel.name}: {said}" for one, checked in checks(texts) for said in differences(checked)]


def checks(texts: Sequence[KernelTexts], most: int = MOST_PRODUCTS) -> Iterator[tuple[KernelTexts, Checked]]:
    """For each kernel what is to be checked. most: points of all dims at which all programs run.

    What an earlier kernel stores has the values of its terms, so that each text is checked by itself.
    """
    from ..proofs.kernels import check
    from ..proofs.kernels.term_values import levels_of

    levels = max((levels_of(store.term for store in one.kernel.stores) for one in texts), default=1)
    known: dict[str, Any] = {}
    for one in texts:
        given = {name: _drawn(name, tensor) for name, tensor in one.inputs.items()}
        strides = {name: tensor.stride() for name, tensor in one.inputs.items()}
        stored = {tensor.name: known[tensor.name] for tensor in one.kernel.inputs if tensor.name not in given}
        made = tuple(check.Memory(*written) for written in one.made)
        results = tuple(check.Result(s.output.name, s.term, s.order, s.places) for s in one.kernel.stores)
        checked = check.Checked(
            tuple(check.Call(**vars(call)) for call in one.calls),
            results,
            given | stored,
            strides | {name: check.contiguous(value.shape) for name, value in stored.items()},
            made,
            one.sizes,
            sample(one, most),
            levels,
        )
        yield one, checked
        if one is not texts[-1]:
            reference = check.Reference(checked)
            known |= {result.name: reference.of(result, None) for result in results}


def sample(one: KernelTexts, most: int) -> tuple[int, ...] | None:
    """The programs that run of a large kernel; None for all of them, as where several launches make a result."""
    count, points = one.calls[0].programs, _points(one.kernel, one)
    if points <= most or len(one.calls) > 1:
        return None
    wanted = max(FEWEST_PROGRAMS, count * most // points)
    return tuple(int(n) for n in np.unique(np.linspace(0, count - 1, wanted).round()))


def _points(kernel: Kernel, one: KernelTexts) -> int:
    dims = dict.fromkeys(d for store in kernel.stores for d in (*store.order, *all_dims(store.term)))
    return prod(resolve(d.size, one.sizes) for d in dims)


def _drawn(name: str, tensor: torch.Tensor) -> np.ndarray:
    """The tensor's values; random ones for floats but those that a mask has."""
    own = tensor.detach().cpu()
    if not own.is_floating_point():
        return own.numpy()
    values = own.double().numpy()
    drawn = np.random.default_rng([SEED, *name.encode()]).standard_normal(values.shape)
    return np.where(np.isfinite(values) & (np.abs(values) < LARGE), drawn, values)

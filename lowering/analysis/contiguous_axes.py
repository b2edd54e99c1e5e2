"""Neighbouring axes of a tensor that lie in memory as one run, and that are indexed by one dim: x[d // n, d % n].

Neighbours along d are then neighbours in memory, and a tile is loaded by vectors. Strides decide it for each launch.
Example: of a contiguous x with axes of sizes 4 and 8, x[d // 8, d % 8] is read as x's memory at d.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise

import torch

from ...egraph.terms.ops import const, iota
from ...egraph.terms.term import Tensor, Term
from ...egraph.terms.traversal import subterms
from ..plan.launch_facts import Runs


def runs_of(terms: Iterable[Term], values: Mapping[str, torch.Tensor]) -> Runs:
    """The pairs of axes in the terms' loads that the strides of these tensors make one run."""
    loads = {n for term in terms for n in subterms(term) if n.op == "load"}
    found = ((n.attrs[0].name, axis, places) for n in loads for axis, places in _pairs(n.args))
    one = lambda strides, axis, places: strides[axis] == places * strides[axis + 1]
    return frozenset((name, axis) for name, axis, places in found if one(values[name].stride(), axis, places))


def along(tensor: Tensor, index: tuple[Term, ...], runs: Runs) -> tuple[Term, ...]:
    """The index by the dim itself instead of by its quotient and remainder, for axes that lie as one run."""
    for axis, _ in [*_pairs(index)] if runs else ():
        if (tensor.name, axis) in runs:
            index = (*index[:axis], const(0), iota(*index[axis].args[0].dims), *index[axis + 2 :])
    return index


def _pairs(index: tuple[Term, ...]) -> Iterator[tuple[int, int]]:
    """(axis, n) where an axis and the next one are indexed by d // n and d % n."""
    for axis, (first, second) in enumerate(pairwise(index)):
        split = (first.op, second.op) == ("floordiv", "mod") and first.args == second.args
        if split and first.args[0].op == "iota" and first.args[1].op == "const":
            yield axis, first.args[1].attrs[0]

"""The state of one accumulator while its loop runs: what a tile adds to it, and its finished values.

Invariant: absent elements (dropped by the guard, or of gauge -inf) change nothing, whatever their values hold.
"""

from __future__ import annotations

from math import inf

import torch

from ...egraph.terms.ops import MONOIDS
from ...egraph.terms.term import PAIR, Dim, Term
from ..analysis.product_terms import Summand
from ..plan.records import Accumulator
from .tile_ops import HALVES, JOINS, Frame, contract, contract_present, fold, full, skew


class AccumulatorState:
    """Begins absent. `exact` spends more on values that are not finite: a matrix product makes NaN of 0 times them.

    dims: the rows and the loop's; below: the gauge of elements that the guard drops.
    """

    def __init__(self, record: Accumulator, gauge: Term | None, summands: list[Summand], dims, exact: bool, below):
        self.record, self.gauge, self.summands, self.exact = record, gauge, summands, exact
        self.below: float = below
        self.rows, self.dim = dims
        self.scale: torch.Tensor | None = None
        self.totals: list[torch.Tensor | None] = [None] * len(summands)
        self.dropped = gauge is not None or any(s.across for s in summands)
        self.kind = record.reductions[0].dtype.removeprefix(PAIR)

    def blank(self) -> AccumulatorState:
        """A state of the same kind, with nothing in it."""
        return AccumulatorState(self.record, self.gauge, self.summands, (self.rows, self.dim), self.exact, self.below)

    @property
    def parts(self) -> list[torch.Tensor | None]:
        """The scale and the totals."""
        return [self.scale, *self.totals]

    @parts.setter
    def parts(self, parts: list[torch.Tensor | None]) -> None:
        self.scale, *self.totals = parts

    def stored(self, kept: list[tuple[torch.Size, torch.dtype] | None], frame: Frame) -> list[torch.Tensor]:
        """The parts in contiguous tensors of these shapes and dtypes; what is absent so far is made.

        kept: None for a part that is never there.
        """
        nothing = 0.0 if self.gauge is not None else _absent(self.record.monoid, self.dtype(frame))
        for n, (part, kind) in enumerate(zip(self.parts, kept, strict=True)):
            if kind is None or (part is not None and part.shape == kind[0] and part.is_contiguous()):
                continue
            made = torch.full(kind[0], nothing if n else -inf, dtype=kind[1], device=frame.device)
            made = made if part is None else made.copy_(part)
            if n:
                self.totals[n - 1] = made
            else:
                self.scale = made
        return [part for part, kind in zip(self.parts, kept, strict=True) if part is not None and kind is not None]

    def dtype(self, frame: Frame) -> torch.dtype:
        return frame.real if self.kind == "float" else getattr(torch, self.kind)

    def add(
        self, values: dict[Term, torch.Tensor], drops: torch.Tensor | None, owned: frozenset[Term], frame: Frame
    ) -> None:
        """Adds a tile. drops: where the guard is false; owned: the values that may be overwritten."""
        self.dropped |= drops is not None
        if self.gauge is not None:
            self._add_rescaled(values, drops, owned, frame)
            return
        monoid, sides = self.record.monoid, self.summands[0]
        value = self._tile(values[sides.left], frame)
        if drops is not None:
            value = filled(value, drops, MONOIDS[monoid].identity, sides.left in owned)
        if sides.right is None:
            new = fold(monoid, value, self.dim, frame)
        else:
            new = self._contract(value, drops, values[sides.right], sides, frame)
        total = self.totals[0]
        self.totals[0] = new if total is None else JOINS[monoid](total, new)

    def _tile(self, value: torch.Tensor, frame: Frame) -> torch.Tensor:
        value = value.to(self.dtype(frame)) if value.dim() == 0 else value.float() if value.dtype in HALVES else value
        return full(value, self.dim, frame)

    def _add_rescaled(self, values, drops, owned, frame) -> None:
        axis = frame.axes[self.dim]
        gauge = self._tile(values[self.gauge], frame)
        mine = self.gauge in owned and gauge is values[self.gauge]
        if drops is not None:
            gauge, mine = filled(gauge, drops, self.below, mine), True
        top = gauge.amax(axis, keepdim=True)
        top = top if self.scale is None else torch.maximum(self.scale, top)
        safe = top.masked_fill(top == -inf, 0)  # -inf - -inf has no value, and nothing is present: any number will do
        absent = torch.isneginf(gauge) if self.exact else None
        weight = (gauge.sub_(safe) if mine else gauge - safe).exp_()
        keep = None if self.scale is None else self.scale.sub_(safe).exp_()
        for n, (sides, number) in enumerate(zip(self.summands, self.record.totals, strict=True)):
            share = weight if sides.left is None else weight * values[sides.left]
            if sides.right is None:
                new = fold("sum", share if absent is None else share.masked_fill(absent, 0), self.dim, frame)
            else:
                new = self._contract(share, absent, values[sides.right], sides, frame)
            if number != n:
                self.totals[number] = self.totals[number] + new
            else:
                self.totals[n] = new if keep is None else scaled_sum(self.totals[n], keep, new)
        self.scale = top

    def _contract(self, share, absent, right, sides: Summand, frame) -> torch.Tensor:
        dim = sides.across or self.dim
        if sides.across:
            dropped = torch.zeros_like(share, dtype=torch.bool) if absent is None else absent
            absent = skew(dropped, self.rows, self.dim, dim, True, frame) if self.exact else None
            share = skew(share, self.rows, self.dim, dim, 0, frame)
        if self.exact and absent is not None:
            return contract_present(share, absent, right, dim, frame)
        return contract(share, right, dim, frame)

    def lacks_rows(self) -> bool:
        """Whether some row of a rescaled state has nothing in it."""
        return self.gauge is not None and (self.scale is None or bool((self.scale == -inf).any()))

    def doubtful(self) -> bool:
        """Whether a value that is not finite may have come in from an absent element."""
        if not self.dropped or self.record.monoid not in ("sum", "rescaled"):
            return False
        return not all(bool(torch.isfinite(t.sum())) for t in self.totals if t is not None)

    def finished(self, frame: Frame) -> list[tuple[Term, object]]:
        """Each reduction with its value; a rescaled one with the pair of scale and mantissa."""
        shape, device, dtype = (1,) * len(frame.axes), frame.device, self.dtype(frame)
        if self.gauge is None:
            total = self.totals[0]
            if total is None:
                total = torch.full(shape, _absent(self.record.monoid, dtype), dtype=dtype, device=device)
            return [(r, total) for r in self.record.reductions]
        if self.scale is None:
            nothing = (
                torch.full(shape, -inf, dtype=dtype, device=device),
                torch.zeros(shape, dtype=dtype, device=device),
            )
            return [(r, nothing) for r in self.record.reductions]
        nothing = torch.zeros(shape, dtype=dtype, device=device)  # of a value that was added to another's total
        totals = (nothing if total is None else total for total in self.totals)
        return [(r, (self.scale, total)) for r, total in zip(self.record.reductions, totals, strict=True)]


def _absent(monoid: str, dtype: torch.dtype):
    if monoid in ("max", "min") and not dtype.is_floating_point:
        return torch.iinfo(dtype).min if monoid == "max" else torch.iinfo(dtype).max
    return MONOIDS[monoid].identity


def filled(value: torch.Tensor, drops: torch.Tensor, absent: float, mine: bool) -> torch.Tensor:
    """The value with `absent` where drops is true."""
    if not value.is_floating_point() and value.dtype != torch.bool:
        absent = _absent("max" if absent == -inf else "min", value.dtype) if absent in (inf, -inf) else int(absent)
    if mine and torch.broadcast_shapes(value.shape, drops.shape) == value.shape:
        return value.masked_fill_(drops, absent)
    return torch.where(drops, torch.full((), absent, dtype=value.dtype, device=value.device), value)


def sum_over_rows(
    sides: Summand, rows: Dim, values: dict[Term, torch.Tensor], drops: torch.Tensor | None, frame: Frame
) -> torch.Tensor:
    """The sum over a tile's rows of what the guard keeps. drops: where it is false; there, 0 times infinity is NaN."""
    value = values[sides.left]
    value = value if drops is None else filled(value, drops, 0.0, mine=False)
    if sides.right is None:
        return fold("sum", value, rows, frame)
    return contract(value, values[sides.right], rows, frame)


def finite_sum_over_rows(
    sides: Summand, rows: Dim, values: dict[Term, torch.Tensor], drops: torch.Tensor | None, frame: Frame
) -> torch.Tensor:
    """As `sum_over_rows`, and what is dropped changes nothing, whatever it holds."""
    found = sum_over_rows(sides, rows, values, drops, frame)
    if drops is None or sides.right is None or bool(torch.isfinite(found.sum())):
        return found
    value = filled(values[sides.left], drops, 0.0, mine=False)
    return contract_present(value, drops, values[sides.right], rows, frame)


def scaled_sum(total: torch.Tensor, keep: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    """total · keep + new, in place where the shapes allow."""
    if torch.broadcast_shapes(total.shape, keep.shape, new.shape) == total.shape and total.dtype == new.dtype:
        return total.mul_(keep).add_(new)
    return total * keep + new

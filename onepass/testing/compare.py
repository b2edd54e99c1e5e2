"""Compares the results of two PyTorch functions on given arguments, up to rounding, and says how they differ.

A difference is rounding only if both functions change as much when every operation has a small error. Example: two
sums in different orders are equal. For a large mean, E[x²] - E[x]² is not equal to the variance of differences from the
mean, because the latter changes little.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..errors import InputError
from .trace import Overflow, Rounding, watched

RUNS = (2, 6)  # with random errors; the second number only if the first runs do not explain a difference
ROUNDING_MARGIN = 2.0  # rounding may change a result by this factor more than the runs show
MAX_PRINTED_ELEMENTS = 64  # of a tensor that is printed whole


@dataclass(frozen=True)
class Tolerance:
    """Differences that count as rounding: relative to the result, absolute, and the relative error of an operation."""

    rtol: float
    atol: float
    operation: float


TOLERANCES = {
    torch.float64: Tolerance(1e-9, 1e-12, 8 * 2.0**-53),
    torch.float32: Tolerance(1e-5, 1e-6, 8 * 2.0**-24),
    torch.float16: Tolerance(1e-2, 2e-3, 8 * 2.0**-11),
    torch.bfloat16: Tolerance(5e-2, 1e-2, 8 * 2.0**-8),
}


def tolerance_of(dtype: torch.dtype, rtol: float | None, atol: float | None) -> Tolerance:
    """The tolerance of a dtype, with the given values instead of its own. An rtol also counts for every operation.

    Raises InputError, a TypeError, for a dtype without a row in TOLERANCES.
    """
    if not isinstance(dtype, torch.dtype) or dtype not in TOLERANCES:
        raise InputError(f"dtype is {dtype!r}: it must be one of {', '.join(map(str, TOLERANCES))}")
    own = TOLERANCES[dtype]
    operation = own.operation if rtol is None else max(own.operation, rtol)
    return Tolerance(own.rtol if rtol is None else rtol, own.atol if atol is None else atol, operation)


class OutOfRange(Exception):
    """The results differ and a sum or a product leaves the range of its dtype, so the comparison is skipped."""


def difference(
    functions: Sequence[Callable], arguments: Sequence, tolerance: Tolerance, sums_may_overflow: bool = True
) -> str | None:
    """How the results of two functions differ, or None. Raises the error of the first, if both raise one.

    Raises OutOfRange for a difference where a sum or a product leaves the range, unless sums_may_overflow is False.
    """
    results: list[list[torch.Tensor]] = []
    errors: list[tuple[Callable, Exception]] = []
    for function in functions:
        try:
            results.append(_outputs(function, arguments))
        except Exception as error:
            errors.append((function, error))
    if len(errors) == 2:
        raise errors[0][1]
    if errors:
        (function, raised), (one, other) = errors[0], names(*functions)
        who, rest = (one, other) if function is functions[0] else (other, one)
        return f"{who} raises {type(raised).__name__}, {rest} gives a result: {raised}"
    return _results_differ(functions, arguments, results, tolerance, sums_may_overflow)


def cast(value: Any, dtype: torch.dtype) -> Any:
    """A floating-point tensor in the given dtype, detached; any other argument unchanged."""
    return value.detach().to(dtype) if isinstance(value, torch.Tensor) and value.is_floating_point() else value


def has_no_elements(arguments: Sequence) -> bool:
    """Whether one of the tensors is empty."""
    return any(isinstance(a, torch.Tensor) and not a.numel() for a in arguments)


def names(*functions: Callable) -> list[str]:
    """The names of two functions in messages."""
    given = [getattr(f, "__name__", repr(f)) for f in functions]
    if len(set(given)) == len(given) and "<lambda>" not in given:
        return given
    return [f"{n} ({which})" for n, which in zip(given, ("the first", "the second"))]


def _outputs(function: Callable, arguments: Sequence) -> list[torch.Tensor]:
    """Every tensor of the result, in order, in float64 or integers. The function may write into its arguments."""
    result = function(*(a.clone() if isinstance(a, torch.Tensor) else a for a in arguments))
    leaves = [x for x in torch.utils._pytree.tree_leaves(result) if x is not None]
    tensors = [x.detach().cpu() if isinstance(x, torch.Tensor) else torch.as_tensor(x) for x in leaves]
    numbers = [torch.view_as_real(x) if x.is_complex() else x for x in tensors]
    return [x.double() if x.is_floating_point() else x for x in numbers]


def _results_differ(functions, arguments, results, tolerance: Tolerance, sums_may_overflow: bool) -> str | None:
    """How two lists of results differ, or None. Raises OutOfRange."""
    left, right = results
    if len(left) != len(right):
        return f"{len(left)} outputs against {len(right)}"
    overflows: list[Overflow] = []
    runs = [[own] for own in results]
    for number, (a, b) in enumerate(zip(left, right)):
        if a.shape != b.shape:
            return f"output {number} has shape {tuple(a.shape)} against {tuple(b.shape)}"
        if _is_close(a, b, tolerance):
            continue
        overflows = overflows or [_overflow(h, arguments) for h in functions]
        if sums_may_overflow and any(o.sums for o in overflows):
            raise OutOfRange
        # A difference is rounding only if the rounding errors of both functions explain it.
        errors = (_unexplained(f, arguments, number, (a, b), known, tolerance) for f, known in zip(functions, runs))
        rounding = next(filter(lambda error: error is not None, errors), None)
        if rounding is not None:
            return f"output {number} {_described(functions, (a, b), tolerance, rounding, overflows)}"
    return None


def _described(
    functions,
    sides: tuple[torch.Tensor, torch.Tensor],
    tolerance: Tolerance,
    rounding: torch.Tensor,
    overflows: Sequence[Overflow],
) -> str:
    """How two results of one shape differ, where rounding does not explain it."""
    wrong = _apart(*sides, tolerance, rounding)
    why = _from_where(functions, sides, wrong, overflows) or _by_how_much(*sides, wrong, tolerance, rounding)
    return f"{_how(*sides, wrong)}{why}"


def _is_close(a: torch.Tensor, b: torch.Tensor, tolerance: Tolerance) -> bool:
    """Whether two results of one shape are equal, or within the tolerance everywhere."""
    equal = a.dtype == b.dtype and torch.equal(a, b)
    return equal or not _apart(a, b, tolerance, torch.zeros(())).any()


def _unexplained(
    function, arguments, number: int, sides: tuple[torch.Tensor, torch.Tensor], known: list, tolerance: Tolerance
) -> torch.Tensor | None:
    """The rounding error of one function, if it does not explain the difference of two results; else None.

    known: results of the function; all but the first are from runs with random errors. More are added if needed.
    """
    for count in RUNS:
        while len(known) <= count:
            with watched(Rounding(tolerance.operation, len(known))):
                known.append(_outputs(function, arguments))
        rounding = ROUNDING_MARGIN * _spread([run[number] for run in known])
        if not _apart(*sides, tolerance, rounding).any():
            return None
    return rounding


def _apart(a: torch.Tensor, b: torch.Tensor, tolerance: Tolerance, rounding: torch.Tensor) -> torch.Tensor:
    """Where two results of one shape differ by more than rounding."""
    x, y = a.double(), b.double()
    same = (a == b) | (x.isnan() & y.isnan())
    apart = torch.where(x.isfinite() & y.isfinite(), (x - y).abs(), torch.inf)
    return ~(same | (apart <= _allowed(a, b, tolerance, rounding)))


def _allowed(a: torch.Tensor, b: torch.Tensor, tolerance: Tolerance, rounding: torch.Tensor) -> torch.Tensor:
    """The largest difference that counts as rounding. Integers and truth values have no tolerance."""
    if not (a.is_floating_point() or b.is_floating_point()):
        return rounding
    size = torch.maximum(a.double().abs(), b.double().abs())
    return tolerance.rtol * torch.where(size.isfinite(), size, 0.0) + tolerance.atol + rounding


def _spread(values: Sequence[torch.Tensor]) -> torch.Tensor:
    """The range of each element over some runs; ∞ for an element that is finite in some runs only."""
    if len({v.shape for v in values}) > 1:
        return torch.tensor(torch.inf)
    every = torch.stack(list(values)).double()
    kinds = torch.stack([every.isnan(), every == torch.inf, every == -torch.inf])
    flips = (kinds.any(1) & ~kinds.all(1)).any(0)
    moved = (every.amax(0) - every.amin(0)).nan_to_num(nan=0.0, posinf=torch.inf)
    return torch.where(flips, torch.inf, torch.where(every.isfinite().all(0), moved, 0.0))


def _overflow(function: Callable, arguments) -> Overflow:
    with watched(Overflow()) as found:
        _outputs(function, arguments)
    return found


# Messages ------------------------------------------------------------------------------------------------------------


def _how(a: torch.Tensor, b: torch.Tensor, wrong: torch.Tensor) -> str:
    """Two results that differ: whole if they are small, else the place with the largest difference."""
    if a.numel() <= MAX_PRINTED_ELEMENTS:
        return f"is\n{a.tolist()} against\n{b.tolist()}"
    apart = torch.where(wrong, (a.double() - b.double()).abs().nan_to_num(nan=torch.inf, posinf=torch.inf), -1.0)
    place = _place(apart == apart.max())
    return f"of shape {tuple(a.shape)} differs most at {place}: {a[place].item()} against {b[place].item()}"


def _from_where(functions, results, wrong: torch.Tensor, overflows: Sequence[Overflow]) -> str:
    """Which function is not finite at the first place where they differ, and the call that caused it."""
    place = _place(wrong)
    values = [r[place].double() for r in results]
    if len({bool(v.isfinite()) for v in values}) == 1:
        return ""
    lines = []
    for name, value, overflow in zip(names(*functions), values, overflows):
        cause = f" ({overflow.first} is the first call that makes it of finite numbers)" if overflow.first else ""
        lines.append(f"{name} is finite" if value.isfinite() else f"{name} is {value.item()}{cause}")
    return f"\nat {place} {', '.join(lines)}"


def _by_how_much(a: torch.Tensor, b: torch.Tensor, wrong: torch.Tensor, tolerance: Tolerance, rounding) -> str:
    """The difference of two finite numbers at the first place, and how much of it rounding explains."""
    place = _place(wrong)
    apart = (a[place].double() - b[place].double()).abs().item()
    allowed = _allowed(a, b, tolerance, rounding).expand(a.shape)[place].item()
    return f"\nat {place} they differ by {apart:.3g}; rounding explains {allowed:.3g}" if apart < torch.inf else ""


def _place(where: torch.Tensor) -> tuple[int, ...]:
    return tuple(where.nonzero()[0].tolist())


def shown(value: object) -> str:
    """An argument in a message: whole if it is small."""
    if not isinstance(value, torch.Tensor):
        return repr(value)
    whole = (
        f" = {value.tolist()}"
        if value.numel() <= MAX_PRINTED_ELEMENTS
        else f", {value.min().item()} to {value.max().item()}"
    )
    return f"shape {tuple(value.shape)}{whole}"

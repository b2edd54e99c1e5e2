"""Sums and products of matrices whose bits depend on their own elements alone: not on a shape, a place, or a thread.

Each factor is a sum of whole numbers of 21 bits, times a power of two. Products of such numbers, and sums of up to 2048
of them, are whole numbers below 2^53, which float64 holds: no order of adding, and no library's kernel, can change
them. What is cut off is below 2^-42 of a row's largest element in float32, and below 2^-63 in float64. The power of two
is of one row, or of one key, so that no row is rounded by what its neighbours hold. Example: the scores of a row are
equal bit by bit in a tile of 16 rows and in one of 256.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

BITS = 21  # of a whole number
MAX_TERMS = 2048  # of one sum: 2 · 21 + 11 bits are 53
Product = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def exact_product(x: torch.Tensor, y: torch.Tensor, axis: int, apart: frozenset[int], product: Product) -> torch.Tensor:
    """Σ x · y along an axis, which `product` adds up in float64 in any order. Both have an axis in each place.

    apart: axes along which elements belong to different rows or keys, so that no power of two is shared along them.
    """
    count = max(x.shape[axis], y.shape[axis])
    parts = ((_cut(x, axis, n), _cut(y, axis, n)) for n in range(0, count, MAX_TERMS))
    total = None
    for part in parts:
        new = _product(*part, axis, apart, product)
        total = new if total is None else total + new
    assert total is not None, "a sum has terms"
    return total.to(torch.result_type(x, y))


def exact_sum(x: torch.Tensor, axis: int) -> torch.Tensor:
    """Σ x along an axis, which stays with one element."""
    total = None
    for n in range(0, x.shape[axis], MAX_TERMS):
        part = _cut(x, axis, n)
        finite, wild = _finite(part.double())
        scale = _exponent(finite, (axis,))
        new = _joined([p.sum(axis, keepdim=True) for p in _whole_numbers(finite, scale, _parts(x))], scale)
        if wild:
            new = _with_wild(new, part.double().sum(axis, keepdim=True))
        total = new if total is None else total + new
    assert total is not None, "a sum has terms"
    return total.to(x.dtype)


def _cut(x: torch.Tensor, axis: int, start: int) -> torch.Tensor:
    return x if x.shape[axis] == 1 else x.narrow(axis, start, min(MAX_TERMS, x.shape[axis] - start))


def _parts(*tensors: torch.Tensor) -> int:
    """Whole numbers that stand for one element: 42 bits for float32, 63 for float64."""
    return 3 if any(t.dtype == torch.float64 for t in tensors) else 2


def _product(x: torch.Tensor, y: torch.Tensor, axis: int, apart: frozenset[int], product: Product) -> torch.Tensor:
    count, (first, wild), (second, other_wild) = _parts(x, y), _finite(x.double()), _finite(y.double())
    if axis in apart:  # each key has its own power of two: the other factor, of one row, takes it in
        first, second, scale = _with_scales_of_keys(first, second, axis, apart)
    else:
        powers = [_exponent(v, (axis,)) for v in (first, second)]
        first, second = (_scaled(v, -p) for v, p in zip((first, second), powers))
        scale = powers[0] + powers[1]
    none = torch.zeros((), dtype=torch.int64, device=x.device)
    lefts, rights = (list(_whole_numbers(v, none, count)) for v in (first, second))
    sums = [sum(product(lefts[n], rights[rank - n]) for n in range(rank + 1)) for rank in range(count)]
    found = _joined(sums, scale, 2)
    return _with_wild(found, product(x.double(), y.double())) if wild or other_wild else found


def _with_scales_of_keys(
    x: torch.Tensor, y: torch.Tensor, axis: int, apart: frozenset[int]
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Both factors with elements up to 1, and the exponent of their product: one of them takes the other's powers."""
    x_power, y_power = (_exponent(v, _shared_axes(v, other, axis, apart)) for v, other in ((x, y), (y, x)))
    into_y = _extends(y_power, x) and not _extends(x_power, y)
    if into_y:
        x, y, y_power = y, x, x_power
    x = torch.where(_absent(y, x, axis, apart), 0.0, x)  # a masked key's weight shall not count in a row's power of two
    x, y = _scaled(x, y_power), _scaled(y, -y_power)
    power = _exponent(x, (axis,))
    x = _scaled(x, -power)
    return (y, x, power) if into_y else (x, y, power)


def _absent(x: torch.Tensor, other: torch.Tensor, axis: int, apart: frozenset[int]) -> torch.Tensor:
    """Where every element of a key is 0 in this factor, so that the other one's may be anything."""
    axes = _shared_axes(x, other, axis, apart)
    return (x == 0).all(dim=axes, keepdim=True) if axes else x == 0


def _shared_axes(x: torch.Tensor, other: torch.Tensor, axis: int, apart: frozenset[int]) -> tuple[int, ...]:
    """The axes of a factor that the other lacks and along which elements belong to one key."""
    return tuple(k for k, n in enumerate(x.shape) if n > 1 and other.shape[k] == 1 and k != axis and k not in apart)


def _extends(power: torch.Tensor, x: torch.Tensor) -> bool:
    """Whether a factor would grow if it took in these powers of two."""
    return any(n > 1 and m == 1 for n, m in zip(power.shape, x.shape, strict=True))


def _finite(x: torch.Tensor) -> tuple[torch.Tensor, bool]:
    """The elements with 0 for what is not finite, and whether some are not."""
    finite = torch.isfinite(x)
    return (x, False) if bool(finite.all()) else (torch.where(finite, x, 0.0), True)


def _with_wild(found: torch.Tensor, rough: torch.Tensor) -> torch.Tensor:
    """The sum where it is finite. Which infinity or NaN another one is does not depend on an order."""
    return torch.where(torch.isfinite(rough), found, rough)


def _exponent(x: torch.Tensor, axes: tuple[int, ...]) -> torch.Tensor:
    """The least e for which all elements along the axes are below 2^e."""
    return torch.frexp(x.abs().amax(axes, keepdim=True) if axes else x.abs()).exponent.long()


def _scaled(x: torch.Tensor, power: torch.Tensor) -> torch.Tensor:
    """x · 2^power. A product with a power of two is exact; two of them reach what one float64 does not hold."""
    half = power // 2
    return x * _power_of_two(half) * _power_of_two(power - half)


def _power_of_two(power: torch.Tensor) -> torch.Tensor:
    return ((power.clamp(-1022, 1023) + 1023) << 52).view(torch.float64)


def _whole_numbers(x: torch.Tensor, scale: torch.Tensor, count: int) -> Iterator[torch.Tensor]:
    """Whole numbers p with x ≈ 2^scale · (p0 · 2^-21 + p1 · 2^-42 + ...)."""
    rest = _scaled(x, BITS - scale)
    for _ in range(count):
        number = rest.round()
        yield number
        rest = (rest - number) * 2.0**BITS


def _joined(sums: list[torch.Tensor], scale: torch.Tensor, factors: int = 1) -> torch.Tensor:
    """The sum of what each rank of whole numbers adds, the smallest first."""
    total = sums[-1]
    for found in reversed(sums[:-1]):
        total = found + total * 2.0**-BITS
    return _scaled(total, scale - factors * BITS)


# Functions of one element


def one_by_one(function: Callable[..., torch.Tensor], *args: torch.Tensor) -> torch.Tensor:
    """A function of torch's whose vectorised code and whose code for single elements differ in bits, by the latter.

    torch takes the vectorised code for elements that lie side by side: here, every other place is empty.
    """
    args = torch.broadcast_tensors(*args)
    spread = [x.new_empty((*x.shape, 2))[..., 0].copy_(x) for x in args]
    return function(*spread).contiguous()

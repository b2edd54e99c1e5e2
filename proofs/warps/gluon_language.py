"""What Gluon adds to the language: functions of tiles, and what device functions mean that are instructions inside.

Layouts say where elements lie and change no value: they are read and dropped. Invariant: a device function without
instructions is none of this table: it is run from its text. Example: `rescaled(x, f)` is x · f by rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from ..kernels import numbers as exact
from ..kernels.language import FUNCTIONS, binary, is_plain, ranked, rearranged
from ..kernels.memory import Buffer, KernelFault, Pointer
from ..kernels.numbers import Numbers
from ..kernels.term_values import MEANINGS

WORD = 32  # bits of a word of a packed mask
EXACT_COUNT = 1 << 23  # up to here a float counts


class Layout:
    """Any layout."""


LAYOUT = Layout()
COPIED_BYTES = 16  # of a row, at whose multiples a copy begins


@dataclass(frozen=True, eq=False)
class CopyWindow:
    """A tensor map: the part of a tensor that it covers, and the box that is copied at once.

    shape, strides: of the tensor, as far as it is covered. item: bytes of an element.
    """

    buffer: Buffer
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    item: int

    @property
    def bytes(self) -> int:
        """The bytes of a box, also of its elements outside."""
        return self.item * int(np.prod(self.box))

    def places(self, where: list) -> tuple[np.ndarray, np.ndarray]:
        """The places of a box's elements in memory, and which of them are inside."""
        if len(where) != len(self.box):
            raise KernelFault(f"a copy of {len(self.box)} axes has {len(where)} coordinates")
        if int(np.asarray(where[-1]).reshape(-1)[0]) * self.item % COPIED_BYTES:  # seen on an H200: it stops the GPU
            raise KernelFault(f"a copy begins at element {where[-1]} of a row, not at a multiple of 16 bytes")
        places, inside = np.zeros(self.box, np.int64), np.ones(self.box, bool)
        for axis, first in enumerate(where):
            index = int(np.asarray(first).reshape(-1)[0]) + np.arange(self.box[axis])
            along = tuple(-1 if n == axis else 1 for n in range(len(self.box)))
            places = places + (index * self.strides[axis]).reshape(along)
            inside = inside & ((index >= 0) & (index < self.shape[axis])).reshape(along)
        return places, inside

    def read(self, where: list) -> Any:
        """A box; 0 outside."""
        places, inside = self.places(where)
        self.buffer.check_reads(places[inside])
        found = self.buffer.read(np.where(inside, places, 0))
        if isinstance(found, Numbers):
            return exact.choose(inside, found, exact.literal(0.0))
        return np.where(inside, found, np.zeros(1, found.dtype))

    def write(self, where: list, value: Any) -> None:
        """Writes what of a box is inside."""
        places, inside = self.places(where)
        picked = lambda part: part[inside]
        value = value.arranged(picked) if isinstance(value, Numbers) else picked(value)
        self.buffer.write(places[inside], value)


# Functions of the language


def _without_layout(function: str) -> Callable:
    return lambda *args, layout=None, **named: FUNCTIONS[function](*_bare(args), **named)


def _bare(args):
    return [a for a in args if not isinstance(a, Layout)]


def _joined(a, b):
    a, b = ranked(a, b)
    a, b = (rearranged(x, lambda part: np.expand_dims(part, -1)) for x in (a, b))
    if isinstance(a, Numbers):
        return Numbers(np.concatenate([a.parts, b.parts], -1), np.concatenate([a.shadow, b.shadow], -1))
    return np.concatenate([a, b], -1)


def _split(value):
    if value.shape[-1] != 2:
        raise KernelFault("a tile is split whose last axis has not two places")
    return tuple(rearranged(value, lambda part, n=n: part[..., n]) for n in range(2))


def _spread(a, b):
    a, b = ranked(a, b)
    shape = np.broadcast_shapes(a.shape, b.shape)
    return tuple(rearranged(x, lambda part: np.broadcast_to(part, shape)) for x in (a, b))


GLUON_FUNCTIONS: dict[str, Callable] = {
    **FUNCTIONS,
    **{name: _without_layout(name) for name in ("zeros", "full", "arange")},
    "convert_layout": lambda value, layout: value,
    "join": _joined,
    "split": _split,
    "broadcast": _spread,
    "constexpr": lambda value: value,
    "to_tensor": lambda value: value,
}


# Device functions that are instructions


def _by_rows(accumulator, factor):
    return binary("Mult", accumulator, rearranged(factor, lambda part: part[:, :, None]))


def _counted(value):
    value = np.asarray(value)
    if value.size and (value.min() < 0 or value.max() >= EXACT_COUNT):
        raise KernelFault("a number is counted that is no float of its own")
    return exact.of_integers(value)


def _kept(score: Numbers, words: np.ndarray, absent: Numbers | float) -> Numbers:
    """The scores whose bits are set. A thread has of each 8 columns two in each of two rows that lie 8 apart; the bits
    of its word are these numbers of 64 columns, in order."""
    row, column = np.arange(score.shape[1])[:, None], np.arange(score.shape[2])
    thread = row // 16 * 32 + row % 8 * 4 + column % 8 // 2
    bit = column % 64 // 8 * 4 + row // 8 % 2 * 2 + column % 2
    word = np.asarray(words)[:, thread, column // 64]
    other = absent if isinstance(absent, Numbers) else exact.literal(float(absent))
    return exact.choose((word.astype(np.int64) >> bit & 1) != 0, score, other)


def _weights(score, shift: float, factor: float, *rest):
    """2^(score · factor - shift)."""
    return exact.exp2(binary("Sub", binary("Mult", score, factor), shift))


def _capped_weights(x, scale: float, shift: float, factor: float, *rest):
    return _weights(MEANINGS["tanh"](exact.numbers(binary("Mult", x, scale))), shift, factor)


def _logistic(x, scale: float, shift: float, *rest):
    """1 / (1 + 2^(x · scale + shift))."""
    power = exact.exp2(binary("Add", binary("Mult", x, scale), shift))
    return exact.divide(exact.literal(1.0), exact.add(exact.literal(1.0), power))


def _in_register_order(words: Numbers) -> Numbers:
    """Columns as a thread has them in its registers: of each 16 it has 2q, 2q + 1, 2q + 8 and 2q + 9, side by side."""
    place = np.arange(words.shape[2])
    column = place // 16 * 16 + place % 4 // 2 * 8 + place % 16 // 4 * 2 + place % 2
    return words.arranged(lambda part: part[:, :, column])


def places_of_registers(pointer: Pointer, x: Numbers) -> np.ndarray:
    """Where `add_in_order` adds the elements of a tile: in the order of a thread's registers, 16 bytes of each thread
    at a time."""
    r, c = np.arange(x.shape[1])[:, None], np.arange(x.shape[2])
    thread = r // 16 * 32 + r % 8 * 4 + c % 8 // 2
    return whole(pointer.places) + c // 8 * 512 + thread * 4 + r // 8 % 2 * 2 + c % 2


def _add_diagonals(pointer: Pointer, x: Numbers, sign: int) -> None:
    """Adds the sums along diagonals, each at the place of column - row. One that is 0 is not added."""
    first, rows, columns = whole(pointer.places), *x.shape[1:]
    for far in range(1 - rows, columns):
        along = partial(np.diagonal, offset=far)
        total = exact.total(x.arranged(lambda part: part[0]).arranged(along), 0)
        if total.parts.any() or not np.isfinite(total.shadow):
            pointer.buffer.add(np.array([first + sign * far]), total.arranged(lambda part: part[None]))


def _all_of(pointers: Pointer, step: int) -> Any:
    return pointers.load(np.ones(1, bool), None)


DEVICE_FUNCTIONS: dict[str, Callable] = {
    "add_diagonals": _add_diagonals,
    "asked_for": lambda pointer: None,
    "bounded_weights": _weights,
    "capped_weights": _capped_weights,
    "coarse_tangent": lambda x: MEANINGS["tanh"](exact.numbers(x)),
    "counted": _counted,
    "diagonal_tile": _all_of,
    "kept": _kept,
    "kept_registers": lambda words: None,
    "level_of": lambda scale: binary("Mult", scale, _unit(scale)),
    "logistic_of": _logistic,
    "narrow_operand": lambda words, layout: _in_register_order(words),
    "narrow_words": lambda weight: weight,
    "ramp": lambda at, unit: binary("Mult", _counted(at), unit),
    "reciprocal": lambda x: exact.divide(exact.literal(1.0), exact.numbers(x)),
    "rescaled": _by_rows,
    "rounded": lambda x, kind: x,
    "small_logistic_of": _logistic,
    "widened": lambda x: x,
}


def _unit(scale: Numbers) -> Numbers:
    """As the device function `unit_of` has it."""
    far = np.abs(scale.shadow) > 134217728.0
    return exact.choose(far, exact.literal(1.0), exact.literal(1.4426950408889634))


def extent(value: Any) -> tuple[int, ...]:
    """The shape of a tile as the text sees it, or of what is in shared memory."""
    if isinstance(value, np.ndarray | Numbers):
        return value.shape[1:]
    return value.shape if not isinstance(value, Pointer) else value.places.shape[1:]


def whole(value: Any) -> int:
    """An integer of the program."""
    return int(value if is_plain(value) else np.asarray(value).reshape(-1)[0])

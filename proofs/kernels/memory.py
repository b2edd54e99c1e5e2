"""The memory that a kernel's text reads and writes: one buffer for each tensor, with its strides.

A buffer knows which of its places are elements of the tensor. What reads or writes another place, or writes a place
twice, is a fault. Programs run side by side, so a place that two of them write has no certain value. Example: a mask
that is left out at the end of a tensor reads beyond it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from . import numbers as exact
from .numbers import Numbers, Value

POISON = 0x5EADBEE  # what an integer is that was not loaded


class KernelFault(Exception):
    """What the text does and no kernel may do; the message says it."""


@dataclass(frozen=True)
class WrittenTensor:
    """A tensor that a launch writes. zero: it holds zeros before; else nobody may read it first."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    zero: bool = False

    @property
    def is_real(self) -> bool:
        """Whether its elements are numbers, not integers or bools."""
        return self.dtype.startswith(("float", "bfloat"))


class Buffer:
    """The memory of one tensor. data: floats, integers, bools or exact numbers, by place."""

    def __init__(self, name: str, data: Value, elements: np.ndarray, levels: int):
        self.name, self.data, self.elements, self.levels = name, data, elements, levels
        self.is_real = isinstance(data, Numbers) or data.dtype.kind == "f"
        self.written = np.zeros(len(elements), bool)

    @classmethod
    def of(cls, name: str, value: Value, strides: Sequence[int], levels: int = exact.LEVELS) -> Buffer:
        """The buffer of a tensor with these values and strides. Between its elements is what nobody may read."""
        shape = value.shape
        places = _places(shape, strides)
        size = int(places.max()) + 1 if places.size else 0
        elements = np.zeros(size, bool)
        elements[places] = True
        scattered = lambda part, start: _scattered(part, places, np.full(size, start, part.dtype))
        if isinstance(value, Numbers):
            parts = np.stack([scattered(part, 0) for part in value.parts])
            return cls(name, Numbers(parts, scattered(value.shadow, np.nan)), elements, levels)
        return cls(name, scattered(value, np.nan if value.dtype.kind == "f" else 0), elements, levels)

    @classmethod
    def made(cls, memory: WrittenTensor, levels: int) -> Buffer:
        """A buffer to write."""
        shape, zero = tuple(memory.shape), memory.zero
        if memory.is_real:
            value = Numbers(np.zeros((levels, *shape), np.int64), np.full(shape, 0.0 if zero else np.nan))
            return cls.of(memory.name, value, memory.strides, levels)
        start = 0 if zero or memory.dtype in ("bool", "int8", "uint8", "int16") else POISON
        return cls.of(memory.name, np.full(shape, start, memory.dtype), memory.strides, levels)

    def read(self, places: np.ndarray) -> Value:
        """The values of these places."""
        if isinstance(self.data, Numbers):
            return self.data.arranged(lambda part: part[places])
        found = self.data[places]
        return exact.of_floats(found, self.levels) if self.is_real else found

    def write(self, places: np.ndarray, value: Value) -> None:
        """Writes values to places. Raises KernelFault for a place that was written before."""
        self._require(places, "written")
        if len(np.unique(places)) < len(places) or self.written[places].any():
            raise KernelFault(f"an element of {self.name} is written twice")
        self.written[places] = True
        if isinstance(self.data, Numbers):
            value = exact.numbers(value)
            self.data.parts[:, places], self.data.shadow[places] = value.parts[-self.levels :], value.shadow
        elif isinstance(value, Numbers):
            raise KernelFault(f"a number is written to {self.name}, which has integers")
        else:
            self.data[places] = value

    def add(self, places: np.ndarray, value: Numbers) -> None:
        """Adds numbers to places, which several may do. Raises KernelFault."""
        self._require(places, "added to")
        if not isinstance(self.data, Numbers):
            raise KernelFault(f"a number is added to {self.name}, which has none")
        if len(np.unique(places)) < places.size:
            raise KernelFault(f"a tile is added twice to an element of {self.name}")
        found = exact.add(self.read(places), value)
        self.written[places] = True
        self.data.parts[:, places], self.data.shadow[places] = found.parts[-self.levels :], found.shadow

    def check_reads(self, places: np.ndarray) -> None:
        """Raises KernelFault for places that are not the tensor's."""
        self._require(places, "read")

    def _require(self, places: np.ndarray, what: str) -> None:
        if places.size and (places.min() < 0 or places.max() >= len(self.elements)):
            raise KernelFault(f"memory beyond {self.name} is {what}")
        if not self.elements[places].all():
            raise KernelFault(f"memory between the elements of {self.name} is {what}")

    def values(self, shape: Sequence[int], strides: Sequence[int]) -> tuple[Value, np.ndarray]:
        """The tensor's values, and which of them were written."""
        places = _places(shape, strides)
        return self.read(places), self.written[places]


@dataclass(frozen=True, eq=False)
class Pointer:
    """Places in a buffer, as a pointer plus offsets."""

    buffer: Buffer
    places: np.ndarray

    def load(self, present: np.ndarray, other: Value | float | None) -> Value:
        """What is at the places that are present, and `other` elsewhere."""
        places, present = np.broadcast_arrays(self.places, present)
        self.buffer.check_reads(places[present])
        found = self.buffer.read(np.where(present, places, 0)) if len(self.buffer.elements) else None
        if self.buffer.is_real:
            default = exact.numbers(float(np.nan) if other is None else other)
            return default if found is None else exact.choose(present, found, default)
        absent = POISON if other is None else other
        return np.where(present, found, np.asarray(absent).astype(self.buffer.data.dtype))

    def store(self, present: np.ndarray, value: Value) -> None:
        """Writes the value at the places that are present."""
        places, present = np.broadcast_arrays(self.places, present)
        spread = lambda part: np.broadcast_to(part, places.shape)[present]
        value = exact.numbers(value) if isinstance(value, float) else value
        picked = value.arranged(spread) if isinstance(value, Numbers) else spread(np.asarray(value))
        self.buffer.write(places[present], picked)


def _places(shape: Sequence[int], strides: Sequence[int]) -> np.ndarray:
    """The place of each element."""
    found = np.zeros(tuple(shape), np.int64)
    for axis, (length, stride) in enumerate(zip(shape, strides, strict=True)):
        found = found + (np.arange(length) * stride).reshape([-1 if n == axis else 1 for n in range(len(shape))])
    return found


def _scattered(part: np.ndarray, places: np.ndarray, into: np.ndarray) -> np.ndarray:
    into[places] = part
    return into

"""Shared memory of a program, and who may read and write it when.

Each access has a number. A group of warps knows which accesses are over: its own, those of copies and products that it
waited for, and those that others knew when they arrived at a barrier where it waited. An element may be read by who
knows that its last write is over, and written by who also knows that the reads of it are. Copies and products use
another path to memory: what warps wrote or read themselves counts for these only behind a fence. Invariant: a race is
found in whatever order warps run. Example: a copy into a tile that a product may still read is a fault.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from ..kernels.memory import KernelFault
from ..kernels.numbers import Numbers, Value
from .events import Access, Ended, Event, Fence


@dataclass(eq=False)
class Warps:
    """The warps that run one function. known: accesses that are over for them, as bits by number. fenced: those that
    are so for the copies and products that they begin. products, copies: those under way, the oldest first. events:
    what they did. start: what they knew when they began."""

    name: str
    known: int = 0
    fenced: int = 0
    products: deque[InFlight] = field(default_factory=deque)
    copies: deque[int] = field(default_factory=deque)
    events: list[Event] = field(default_factory=list)
    start: tuple[int, int] = (0, 0)

    def __post_init__(self) -> None:
        self.start = self.known, self.fenced

    def learn(self, known: int, fenced: int) -> None:
        """Takes over what others know."""
        self.known |= known
        self.fenced |= fenced

    def fence(self) -> None:
        """Copies and products that begin later come after what is known."""
        self.fenced |= self.known
        self.events.append(Fence())

    def ended(self, number: int) -> None:
        """A copy or a product is over."""
        self.learn(1 << number, 1 << number)
        self.events.append(Ended(number))

    def await_copies(self, pending: int) -> None:
        """Waits for copies out of shared memory, but for so many of the last ones."""
        while len(self.copies) > pending:
            self.ended(self.copies.popleft())

    def await_products(self, pending: int) -> None:
        """Waits for products, but for so many of the last ones."""
        while len(self.products) > pending:
            product = self.products.popleft()
            product.over = True
            self.ended(product.number)

    def leave(self) -> None:
        """Raises KernelFault for what nobody waits for any more."""
        if self.copies:
            raise KernelFault(f"{self.name} ends while a copy may still read shared memory")
        if self.products:
            raise KernelFault(f"{self.name} ends while a product is under way")


@dataclass(eq=False)
class InFlight:
    """What a product gives once it was waited for. number: of its access to shared memory. spoiled: why its value is
    undefined, which is a fault where somebody uses it: some products are issued in vain."""

    value: Value
    number: int
    over: bool = False
    used: bool = False
    spoiled: str = ""

    def use(self, as_sum: bool = False) -> Value:
        """The value. as_sum: as what another product adds to, which may be issued at once. Raises KernelFault."""
        if not (self.over or as_sum):
            raise KernelFault("a product is used before it was waited for")
        if self.spoiled:
            raise KernelFault(self.spoiled)
        self.used = True
        return self.value

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the result."""
        return self.value.shape


class SharedMemory:
    """All shared memory of one program. what: a sentence for each access. products: by the number of their access."""

    def __init__(self) -> None:
        self.what: list[str] = []
        self.products: dict[int, InFlight] = {}

    def access(self, what: str) -> int:
        """The number of a new access."""
        self.what.append(what)
        return len(self.what) - 1

    def require(self, number: int, known: int, doing: str) -> None:
        """Raises KernelFault unless an access is known to be over."""
        if not known >> number & 1:
            raise KernelFault(f"{doing} while {self.what[number]} may be under way")

    def require_read(self, number: int, known: int, doing: str) -> None:
        """The same for a read; a product whose value nobody has used yet is spoiled."""
        product = self.products.get(number)
        if product is None or product.used:
            self.require(number, known, doing)
        elif not known >> number & 1:
            product.spoiled = f"{doing} while {self.what[number]} may be under way"


class SharedBuffer:
    """One allocation. data: what is in it by place. written: the number of each place's last write, -1 for none.
    reads: those after it, each with the places that it read."""

    def __init__(self, memory: SharedMemory, name: str, shape: Sequence[int]):
        self.memory, self.name, size = memory, name, prod(shape)
        self.data: Any = None
        self.written = np.full(size, -1, np.int64)
        self.reads: list[tuple[int, np.ndarray]] = []
        self.whole = SharedView(self, np.arange(size).reshape(tuple(shape)))

    def check(self, places: np.ndarray, known: int, doing: str, writes: bool) -> None:
        """Raises KernelFault for a read before a write is over, or for a write before that and reads are over."""
        last = np.unique(self.written[places])
        if not writes and last.size and last[0] < 0:
            raise KernelFault(f"{doing}, which nobody wrote")
        for number in last[last >= 0]:
            self.memory.require(int(number), known, doing)
        for number, mask in self.reads if writes else ():
            if mask[places].any():
                self.memory.require_read(number, known, doing)

    def note(self, places: np.ndarray, number: int, writes: bool) -> None:
        """Keeps an access for those that come later."""
        if not writes:
            mask = np.zeros(len(self.written), bool)
            mask[places] = True
            self.reads.append((number, mask))
            return
        self.written[places] = number
        for _, mask in self.reads:
            mask[places] = False
        self.reads = [(n, mask) for n, mask in self.reads if mask.any()]

    def put(self, places: np.ndarray, value: Value) -> None:
        """Writes values, of the kind of the first ones."""
        if self.data is None:
            empty = lambda part: np.zeros(len(self.written), part.dtype)
            self.data = value.arranged(empty) if isinstance(value, Numbers) else empty(value)
        if isinstance(value, Numbers) != isinstance(self.data, Numbers):
            raise KernelFault(f"numbers and integers are written to {self.name}")
        if isinstance(value, Numbers):
            self.data.parts[:, places], self.data.shadow[places] = value.parts[-len(self.data.parts) :], value.shadow
        else:
            self.data[places] = value

    def get(self, places: np.ndarray) -> Value:
        """The values of places."""
        return self.data.arranged(lambda part: part[places]) if isinstance(self.data, Numbers) else self.data[places]


@dataclass(frozen=True, eq=False)
class SharedView:
    """Places of an allocation in some arrangement."""

    buffer: SharedBuffer
    places: np.ndarray

    @property
    def shape(self) -> tuple[int, ...]:
        """The view's shape."""
        return self.places.shape

    def index(self, number: Any) -> SharedView:
        """A part by its place along the first axis."""
        place = int(np.asarray(number).reshape(-1)[0])
        if not 0 <= place < self.shape[0]:
            raise KernelFault(f"{self.buffer.name} has no slot {place}")
        return SharedView(self.buffer, self.places[place])

    def slice(self, start: Any, length: int, dim: int = 0) -> SharedView:
        """A part along an axis."""
        first = int(np.asarray(start).reshape(-1)[0])
        if not 0 <= first <= self.shape[dim] - length:
            raise KernelFault(f"a part of {self.buffer.name} lies beyond it")
        return SharedView(self.buffer, self.places[(slice(None),) * dim + (slice(first, first + length),)])

    def reshape(self, shape: Sequence[int]) -> SharedView:
        """The same elements in another shape."""
        return SharedView(self.buffer, self.places.reshape(tuple(shape)))

    def permute(self, order: Sequence[int]) -> SharedView:
        """The same elements with axes in another order."""
        return SharedView(self.buffer, self.places.transpose(tuple(order)))

    def read(self, warps: Warps, what: str, asynchronous: bool = False) -> tuple[Value, int]:
        """The values, and the number of the access. asynchronous: by a copy or a product, which is over later."""
        number = self._access(warps, f"{what} of {self.buffer.name} by {warps.name}", asynchronous, writes=False)
        return self.buffer.get(self.places), number

    def write(self, value: Value, warps: Warps, what: str, asynchronous: bool = False) -> int:
        """Writes values; the number of the access."""
        if value.shape != self.shape:
            raise KernelFault(f"a tile of {value.shape} is written to {self.shape} of {self.buffer.name}")
        number = self._access(warps, f"{what} to {self.buffer.name} by {warps.name}", asynchronous, writes=True)
        self.buffer.put(self.places, value)
        return number

    def _access(self, warps: Warps, what: str, asynchronous: bool, writes: bool) -> int:
        """The number of an access that these warps may begin now. Raises KernelFault where it is a race."""
        self.buffer.check(self.places, warps.fenced if asynchronous else warps.known, what, writes=writes)
        number = self.buffer.memory.access(what)
        self.buffer.note(self.places, number, writes=writes)
        warps.events.append(Access(number, self.buffer, self.places, writes, asynchronous))
        if not asynchronous:
            warps.known |= 1 << number
        return number

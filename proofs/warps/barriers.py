"""Barriers as the hardware has them: those in shared memory, which count arrivals and bytes, and numbered ones.

A wait names the parity of a phase. It passes if the phase that is under way has the other parity: so a barrier that
nobody has used lets a wait for parity 1 pass. Who passes knows what all who arrived knew. Example: of a ring's slot one
barrier says that a copy is there, and another one that its readers are done.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from ..kernels.memory import KernelFault
from .events import Arrive, Copied
from .shared_memory import SharedMemory, Warps

THREADS = 128  # of a warpgroup, at a numbered barrier
BOTH = 256  # threads that complete a phase of a numbered barrier: those of two warpgroups


@dataclass(frozen=True)
class Waiting:
    """What a group of warps waits for. ready: whether it may go on."""

    what: str
    ready: Callable[[], bool]


@dataclass(eq=False)
class Barrier:
    """A barrier in shared memory. count: of arrivals of a phase; 0 before it is initialised. pending: those that are
    still to come, bytes: of copies that are. phases: that are complete."""

    name: str
    memory: SharedMemory
    count: int = 0
    made: int = -1  # the number of the access that initialised it
    pending: int = 0
    bytes: int = 0
    phases: int = 0
    arrived: tuple[int, int] = (0, 0)  # what those know who arrived in this phase
    released: tuple[int, int] = (0, 0)

    def initialise(self, warps: Warps, count: int) -> None:
        """Makes it a barrier of so many arrivals."""
        if self.count:
            raise KernelFault(f"{self.name} is initialised twice")
        if count < 1:
            raise KernelFault(f"{self.name} counts {count} arrivals")
        self.count = self.pending = count
        self.made = self.memory.access(f"the start of {self.name}")
        warps.known |= 1 << self.made

    def require_made(self, known: int) -> None:
        """Raises KernelFault where it may not be a barrier yet."""
        if not self.count:
            raise KernelFault(f"{self.name} is not initialised")
        self.memory.require(self.made, known, f"{self.name} is used")

    def arrive(self, warps: Warps, count: int = 1) -> None:
        """Arrivals of who knows so much."""
        self._arrive(warps, count, 0)

    def _arrive(self, warps: Warps, count: int, bytes_: int) -> None:
        self.require_made(warps.known)
        warps.events.append(Arrive(self, count, bytes_))
        if count > self.pending:
            raise KernelFault(f"{self.name} has more arrivals than its {self.count}")
        self.pending -= count
        self.bytes += bytes_
        self._learn(warps.known, warps.fenced)

    def expect(self, warps: Warps, bytes_: int) -> None:
        """One arrival, and so many bytes are to come by copies."""
        self._arrive(warps, 1, bytes_)

    def copied(self, warps: Warps, number: int, bytes_: int) -> None:
        """The bytes of a copy that these warps began are there. number: of its access."""
        warps.events.append(Copied(self, number, bytes_))
        if bytes_ > self.bytes:
            raise KernelFault(f"more bytes come to {self.name} than are expected")
        self.bytes -= bytes_
        self._learn(1 << number, 1 << number)

    def _learn(self, known: int, fenced: int) -> None:
        self.arrived = self.arrived[0] | known, self.arrived[1] | fenced
        if self.pending == 0 and self.bytes == 0:
            self.phases, self.pending = self.phases + 1, self.count
            self.released = self.arrived[0] | self.released[0], self.arrived[1] | self.released[1]
            self.arrived = 0, 0

    def passes(self, parity: int) -> bool:
        """Whether a wait for the phase of this parity passes."""
        return (self.phases ^ parity) & 1 == 1


@dataclass
class NumberedBarrier:
    """A barrier of the hardware's own for two warpgroups. phases: how often it was completed."""

    threads: int = 0
    phases: int = 0
    arrived: tuple[int, int] = (0, 0)
    released: dict[int, tuple[int, int]] = field(default_factory=dict)

    def arrive(self, warps: Warps) -> int:
        """A warpgroup arrives; the number of the phase that it completes with another one."""
        phase = self.phases
        self.threads += THREADS
        self.arrived = self.arrived[0] | warps.known, self.arrived[1] | warps.fenced
        if self.threads == BOTH:
            self.released[phase] = self.arrived
            self.threads, self.phases, self.arrived = 0, phase + 1, (0, 0)
        return phase


@dataclass
class Counter:
    """An integer in memory by which programs wait for one another."""

    value: int = 0
    released: tuple[int, int] = (0, 0)

    def signal(self, warps: Warps) -> None:
        """One more program is that far."""
        self.value += 1
        self.released = self.released[0] | warps.known, self.released[1] | warps.fenced

"""Runs the groups of warps of programs as coroutines, in one of several orders, until all are through.

A coroutine gives what it waits for. Invariant: only one that may go on is resumed, so that where none may, the kernel
would wait for ever, which is a fault. Example: with ORDERS[1] a producer copies as far ahead as barriers let it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from ..kernels.interpreter import Steps
from ..kernels.memory import KernelFault
from .barriers import NumberedBarrier, Waiting
from .shared_memory import SharedMemory, Warps

ORDERS = ("as they are listed", "the last ones first", "in turn")  # program n has order n modulo 3


@dataclass(eq=False)
class Partition:
    """One group of warps. steps: what they do. waits: what for, None at first."""

    warps: Warps
    steps: Steps
    waits: Waiting | None = None
    done: bool = False

    @property
    def may_run(self) -> bool:
        """Whether it can go on."""
        return not self.done and (self.waits is None or self.waits.ready())

    def advance(self) -> None:
        """Runs up to the next wait, or to the end."""
        try:
            self.waits = next(self.steps)
        except StopIteration:
            self.done = True
            self.warps.leave()


@dataclass(eq=False)
class RunningProgram:
    """What one program is. copies: the numbers of copies into shared memory."""

    number: int
    partitions: list[Partition] = field(default_factory=list)
    memory: SharedMemory = field(default_factory=SharedMemory)
    numbered: dict[int, NumberedBarrier] = field(default_factory=dict)
    copies: list[int] = field(default_factory=list)

    @property
    def done(self) -> bool:
        """Whether all its warps are through."""
        return all(each.done for each in self.partitions)

    def advance(self) -> bool:
        """Runs its warps while one may; whether one did."""
        order, ran = ORDERS[self.number % len(ORDERS)], False
        while (found := self._next(order)) is not None:
            ran = True
            found.advance()
            while order != ORDERS[2] and found.may_run:
                found.advance()
            self.partitions.sort(key=lambda each: each is found and order == ORDERS[2])
        if self.done:
            self._require_awaited()
        return ran

    def _next(self, order: str) -> Partition | None:
        listed = reversed(self.partitions) if order == ORDERS[1] else self.partitions
        return next((each for each in listed if each.may_run), None)

    def _require_awaited(self) -> None:
        known = 0
        for each in self.partitions:
            known |= each.warps.known
        for number in self.copies:
            self.memory.require(number, known, "a program ends")


def run(programs: Iterable[RunningProgram], ended: Callable[[RunningProgram], None] = lambda program: None) -> None:
    """Runs programs one after the other, and those that wait for others again. Raises KernelFault.

    ended: what is done with a program that is through.
    """
    stuck = []
    for program in programs:
        program.advance()
        if program.done:
            ended(program)
        else:
            stuck.append(program)
    while stuck:
        if not any([program.advance() for program in stuck]):
            waits = next(each for program in stuck for each in program.partitions if not each.done)
            raise KernelFault(f"{waits.warps.name} waits for ever for {waits.waits.what if waits.waits else 'nothing'}")
        for program in stuck:
            if program.done:
                ended(program)
        stuck = [program for program in stuck if not program.done]

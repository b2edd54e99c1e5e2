"""Memory of one device that several processes share while each compiles what it will time.

A process reserves what its next calls need at most, and waits until the others have given back so much. Reservations
never exceed the total; who asks for more than the total gets all of it. Example: `with memory.reserved(2**30): call()`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.context import BaseContext
from typing import Any

import torch


@dataclass(frozen=True)
class Memory:
    """total: bytes for all. left, changed: a number and a condition that processes started with `context` share."""

    total: float
    left: Any
    changed: Any

    @classmethod
    def of(cls, context: BaseContext, total: float) -> Memory:
        return cls(total, context.Value("d", total, lock=False), context.Condition())

    @contextmanager
    def reserved(self, needed: float) -> Iterator[None]:
        needed = min(needed, self.total)
        with self.changed:
            self.changed.wait_for(lambda: self.left.value >= needed)
            self.left.value -= needed
        try:
            yield
        finally:
            torch.cuda.empty_cache()
            with self.changed:
                self.left.value += needed
                self.changed.notify_all()

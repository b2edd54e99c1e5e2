"""What a group of warps does that others may have to wait for, in its order: accesses, arrivals, waits.

A run notes them, and `interleavings` tries them in other orders. Invariant: events name the very barriers and buffers
of the run. Example: a consumer's events of one tile are a wait, a product's access, its end and an arrival.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np


class Access(NamedTuple):
    """A read or a write of shared memory. buffer: a SharedBuffer. asynchronous: by a copy or a product."""

    number: int
    buffer: Any
    places: np.ndarray
    writes: bool
    asynchronous: bool


class Ended(NamedTuple):
    """A copy out of shared memory or a product was waited for. number: of its access."""

    number: int


class Fence(NamedTuple):
    """What is known counts for copies and products."""


class Arrive(NamedTuple):
    """Arrivals at a barrier, a Barrier. bytes: those of copies that are expected from now on."""

    barrier: Any
    arrivals: int
    bytes: int = 0


class Copied(NamedTuple):
    """A copy that will bring bytes to a barrier. number: of its access."""

    barrier: Any
    number: int
    bytes: int


class Wait(NamedTuple):
    """A wait for a phase of a barrier."""

    barrier: Any
    parity: int


class Meet(NamedTuple):
    """An arrival at a numbered barrier. waits: until the other warpgroup arrives there."""

    number: int
    waits: bool


Event = Access | Ended | Fence | Arrive | Copied | Wait | Meet

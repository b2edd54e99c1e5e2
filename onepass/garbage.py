"""Few collections of garbage while much is imported or planned: little of it is garbage, and searching it takes long.

Invariant: the process has its own threshold again at the end. Example: the first `explain` of a process imports 330
modules, and Python would search all objects of torch for garbage meanwhile, which takes 0.2 s. Planning a training step
meets such a search about once.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

OBJECTS_BEFORE_A_COLLECTION = 100_000


@contextmanager
def rare_collections() -> Iterator[None]:
    """Raises the threshold of collections within, as a block or as a decorator.

    A threshold that is raised already stays, so of two threads that overlap the first restores what both found.
    """
    before = gc.get_threshold()
    if not 0 < before[0] < OBJECTS_BEFORE_A_COLLECTION:
        yield
        return
    gc.set_threshold(OBJECTS_BEFORE_A_COLLECTION, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)

"""Locks and lazily computed attributes that are safe in a forked child.

Only the forking thread exists in the child, so a lock that another thread held is never released there. A child gets
new locks for those made by `lock` or registered by `keep_usable`. Lazy attributes need no lock. Example: `LOCK =
lock()`.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable

_LOCKS: weakref.WeakSet = weakref.WeakSet()


def lock() -> threading.RLock:
    """A new reentrant lock that is free in a forked child."""
    return keep_usable(threading.RLock())


def keep_usable(held: threading.RLock) -> threading.RLock:
    """Registers a reentrant lock and returns it: it is free in a forked child, unless the forking thread holds it."""
    _LOCKS.add(held)
    return held


def _make_anew() -> None:
    for held in tuple(_LOCKS):
        if held.acquire(blocking=False):  # it is free, or the forking thread holds it
            held.release()
        else:
            held._at_fork_reinit()


def in_child(act: Callable[[], None]) -> None:
    """Calls `act` in every forked child, before anything else runs there: none of the parent's threads does."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=act)


in_child(_make_anew)


class cached_property:
    """functools.cached_property of Python 3.12, which holds no lock; that of 3.11 does while it computes a value."""

    def __init__(self, function):
        self.function, self.__doc__ = function, function.__doc__

    def __set_name__(self, owner, name: str):
        self.name = name

    def __get__(self, instance, owner=None):
        if instance is None:
            return self
        return instance.__dict__.setdefault(self.name, self.function(instance))

"""Locks and lazily computed attributes that a forked child can use.

Of a process that forks, only the forking thread lives on in the child: a lock that another thread held is never given
back there. Locks made by `lock`, or named to `keep_usable`, are made anew in the child; attributes need no lock.
"""

from __future__ import annotations

import os
import threading
import weakref

_LOCKS: weakref.WeakSet = weakref.WeakSet()


def lock():
    """A reentrant lock that a forked child can take."""
    return keep_usable(threading.RLock())


def keep_usable(held):
    """The same reentrant lock, from now on made anew in a child where a thread held it that the child does not have."""
    _LOCKS.add(held)
    return held


def _make_anew() -> None:
    for held in tuple(_LOCKS):
        if held.acquire(blocking=False):  # free, or the forking thread's own
            held.release()
        else:
            held._at_fork_reinit()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_make_anew)


class cached_property:
    """functools.cached_property as it is from Python 3.12 on. In 3.11 a lock is held while a value is computed."""

    def __init__(self, function):
        self.function, self.__doc__ = function, function.__doc__

    def __set_name__(self, owner, name: str):
        self.name = name

    def __get__(self, instance, owner=None):
        if instance is None:
            return self
        return instance.__dict__.setdefault(self.name, self.function(instance))

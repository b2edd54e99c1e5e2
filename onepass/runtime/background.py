"""Work that threads do before its result is asked for: kernels are compiled while the compiler around is at work.

`finish` waits for work that runs, and cancels what has not begun, so nobody waits in a queue. Work that fails is as if
it had not been tried. A forked child has none of the threads, and none of the work.
Example: `COMPILES.start("key", compile)`, and before the kernel is used `COMPILES.finish("key")`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from ..egraph.forks import in_child, lock
from ..process_state import registered

# More would take turns: half of a compilation is Python. A process for each kernel took as long on 32 cores: it imports
# and hashes Triton once more, and compiles its own launcher.
MAX_THREADS = 2
START = "the compiler's start"  # the key of what every compilation needs first
log = logging.getLogger(__name__)


class Background:
    """Pieces of work by key, each started once."""

    def __init__(self, threads: int = MAX_THREADS):
        self._threads, self._lock = threads, lock()
        self._known: dict[str, Future] = registered({}, "runners", self._lock)
        self._pool: ThreadPoolExecutor | None = None
        in_child(self._forget)

    def start(self, key: str, work: Callable[[], None]) -> None:
        """Has a thread do the work, unless work of this key was started before."""
        with self._lock:
            if key in self._known:
                return
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="onepass")
            self._known[key] = self._pool.submit(_quiet, key, work)

    def finish(self, key: str) -> None:
        """Waits until the work of this key is done, if it has begun; else it is not done any more."""
        found = self._known.get(key)
        if found is not None and not found.cancel():
            found.result()

    def is_under_way(self, key: str) -> bool:
        """Whether a thread does the work of this key now."""
        found = self._known.get(key)
        return found is not None and found.running()

    def _forget(self) -> None:
        self._known.clear()
        self._pool = None


def _quiet(key: str, work: Callable[[], None]) -> None:
    try:
        work()
    except Exception as error:  # who needs the result meets the same error, and says it
        log.debug("onepass: nothing is ready ahead for %s: %s: %s", key[:12], type(error).__name__, error)


COMPILES = Background()  # of kernels, by the key of their region

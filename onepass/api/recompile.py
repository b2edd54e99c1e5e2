"""A compiled graph is compiled once more where that is faster: without regions whose calls Inductor compiles better.

The first call measures a region's plan beside its calls as Inductor compiles them. Where these win, they still run
through an operation of onepass, which costs the host 50 to 160 us in each call. So the next call compiles the graph
anew, without onepass around the region, as the next process does. Invariant: if that fails, the old code stays.
Example: linear attention with a divisor took 430 us of the host, and 174 after the second compilation.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from threading import get_ident

import torch
from torch._C._autograd import _top_saved_tensors_default_hooks

from ..egraph.forks import lock
from ..runtime.library_choice import CALLERS, LEFT_TO_INDUCTOR
from ..runtime.region_call import CALLING
from ..runtime.runner import one_line

log = logging.getLogger(__name__)
_LOCK = lock()


def may_recompile(example_inputs: Sequence[object]) -> bool:
    """Whether calls that Inductor compiles are a rival for a graph with such inputs: tensors with fixed sizes."""
    known = not any(isinstance(x, torch.SymInt) or _has_symbols(x) for x in example_inputs)
    return known and any(isinstance(x, torch.Tensor) for x in example_inputs)


def _is_checkpointed() -> bool:
    """Whether the call is one that a checkpoint runs again, or is that repetition."""
    return torch._C._current_graph_task_id() != -1 or _top_saved_tensors_default_hooks(True) is not None


def _has_symbols(value: object) -> bool:
    return isinstance(value, torch.Tensor) and any(isinstance(n, torch.SymInt) for n in (*value.shape, *value.stride()))


class Recompiled:
    """Runs a compiled graph. Once one of its regions is left to Inductor, `compile_again(arguments)` gives what runs.

    keys: of the graph's regions.
    """

    def __init__(self, run: Callable, keys: Collection[str], compile_again: Callable[[Sequence[object]], Callable]):
        self._run, self._compile_again = run, compile_again
        self._keys, self._known = frozenset(keys), len(LEFT_TO_INDUCTOR)

    def __call__(self, *args):
        CALLERS.add(get_ident())
        if len(LEFT_TO_INDUCTOR) != self._known:
            self._look_again(args)
        return self._run(*args)

    def _look_again(self, args: Sequence[object]) -> None:
        """Compiles the graph anew if one of its regions is among those that were left to Inductor since."""
        if CALLING.planned is not None or (torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()):
            return  # a plan's calls get the same in each process, and a capture waits for nothing
        if len(CALLERS) > 1 or _is_checkpointed():
            return  # other threads' calls fail while torch traces; a forward and its repetition have to be alike
        with _LOCK:
            since, self._known = LEFT_TO_INDUCTOR[self._known :], len(LEFT_TO_INDUCTOR)
            if self._keys.isdisjoint(since):
                return
            try:
                self._run = self._compile_again(args)
            except Exception as error:
                log.warning("onepass: a graph was not compiled once more, its first code runs: %s", one_line(error))

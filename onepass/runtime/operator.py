"""The operations that stand in a compiled graph for fused regions: their schemas and fakes.

`onepass::region` gets the tensors, the region's self-contained text, sizes that no tensor states, and what the tensors
are of the graph where their memory is written anew without a word (`sources`, else empty). `onepass::region.dual` is
the same where the graph itself opens a level of dual numbers. What gradients need is training_operator.py's, what
tangents need is tangent_operator.py's. Registered at import; who runs a region is runner.py's to say.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import library
from torch.autograd import forward_ad

from ..compiler import compiled_region
from ..egraph.forks import lock
from ..lowering.masks.block_map import NamedTensors
from ..process_state import registered
from . import executors
from .region_call import call_of, fake_results, falls_back
from .runner import Runner, one_line
from .tangent_operator import with_tangents
from .training_operator import Recorded

SCHEMA = "(Tensor[] tensors, str program, SymInt[] sizes, str sources='') -> Tensor[]"
log = logging.getLogger(__name__)


class Original:
    """Runs a region that cannot be made again here by its original calls."""

    def __init__(self, known: compiled_region.Carried):
        self.known = known

    def __call__(self, tensors, numbers) -> list[torch.Tensor]:
        falls_back("a cached region cannot be made again")
        return executors.original(self.known, tensors, call_of(self.known, tensors, numbers))(tensors)


_LOCK = lock()
_RUNNERS: dict[str, Runner | Original | _Recording] = registered({}, "runners", _LOCK)
_RECORDINGS: list[dict] = registered([], "runners", _LOCK)  # what `recorded` fills, the innermost last


def runner(text: str) -> Runner | Original | _Recording:
    """The runner of a text, made at its first use."""
    with _LOCK:
        if text not in _RUNNERS:
            found = _new_runner(text)
            _RUNNERS[text] = _Recording(text, _RECORDINGS[-1], found) if _RECORDINGS else found
        return _RUNNERS[text]


def _new_runner(text: str) -> Runner | Original:
    try:
        return Runner(compiled_region.read(text))
    except Exception as error:
        known = compiled_region.carried(text)
        if known.options.strict:
            raise
        log.warning("onepass: a cached region cannot be made again, its original calls run: %s", one_line(error))
        return Original(known)


class _Recording:
    """Runs a region by its runner, and keeps the tensors and sizes of its last call."""

    def __init__(self, text: str, seen: dict, inner: Runner | Original):
        self.text, self.seen, self.inner = text, seen, inner

    def __call__(self, tensors, numbers) -> list[torch.Tensor]:
        self.seen[self.text] = tuple(tensors), tuple(numbers)
        return self.inner(tensors, numbers)


@contextmanager
def recorded() -> Iterator[dict[str, tuple]]:
    """Gives a dict that has, for every region that runs meanwhile, (tensors, sizes) of its last call by its text."""
    seen: dict[str, tuple] = {}
    with _LOCK:
        _RUNNERS.clear()
        _RECORDINGS.append(seen)
    try:
        yield seen
    finally:
        with _LOCK:
            _RUNNERS.clear()
            _RECORDINGS[:] = [other for other in _RECORDINGS if other is not seen]


# The operation --------------------------------------------------------------------------------------------------------
# Every call of a compiled graph comes through here, so its Python is short: no wrapper of library.custom_op, and no
# second trip through the dispatcher where it would lead straight to `_run`.

_LIBRARY = library.Library("onepass", "FRAGMENT")
_BELOW, _BELOW_AUTOGRAD = torch._C._after_ADInplaceOrView_keyset, torch._C._after_autograd_keyset
_STRAIGHT: dict[int, bool] = registered({}, "runners")


def _run(tensors, program, sizes, sources=""):
    sizes = sizes or ()  # a package of AOTInductor's gives None for an empty list
    if torch._C._is_any_autocast_enabled():  # a region's types are all said; what autocast changes is there as casts
        with torch._C._DisableAutocast():
            return _run(tensors, program, sizes, sources)
    found = _RUNNERS.get(program) or runner(program)
    with NamedTensors(tensors, sources):
        return found(tensors, sizes)


def _run_or_record(keys, tensors, program, sizes, sources=""):
    """The autograd layer: straight to `_run` if nothing is recorded and no mode or subclass waits below."""
    sizes = sizes or ()
    if forward_ad._current_level >= 0:
        found = with_tangents(keys, tensors, program, sizes, sources)
        if found is not None:
            return found
    raw = keys.raw_repr()
    straight = _STRAIGHT.get(raw)
    if straight is None:
        last = (keys & _BELOW).highestPriorityTypeId()
        straight = _STRAIGHT[raw] = last in (torch._C.DispatchKey.CPU, torch._C.DispatchKey.CUDA)
    if not (torch.is_grad_enabled() and any([t.requires_grad for t in tensors])):
        if straight:
            return _run(tensors, program, sizes, sources)
        return torch.ops.onepass.region.default.redispatch(keys & _BELOW_AUTOGRAD, tensors, program, sizes, sources)
    return list(Recorded.apply(None if straight else keys & _BELOW_AUTOGRAD, program, sizes, sources, *tensors))


def _run_dual_or_record(keys, tensors, program, sizes, sources=""):
    """The autograd layer within a level of dual numbers that the graph opens: torch's Python knows nothing of it."""
    found = with_tangents(keys, tensors, program, sizes or (), sources)
    return _run_or_record(keys, tensors, program, sizes, sources) if found is None else found


def _fakes(tensors, program, sizes, sources=""):
    known = compiled_region.carried(program)
    return fake_results(known.program.output_metas, call_of(known, tensors, sizes), tensors)


_AUTOGRAD_LAYERS = {
    "region": _run_or_record,
    "region.import_onepass_operator": _run_or_record,  # in packages of AOTInductor's: an error names it
    "region.dual": _run_dual_or_record,
}
for _name, _layer in _AUTOGRAD_LAYERS.items():
    _LIBRARY.define(f"{_name}{SCHEMA}", tags=(torch.Tag.pt2_compliant_tag,))
    _LIBRARY.impl(_name, _run, "CompositeExplicitAutograd")
    _LIBRARY.impl(_name, _layer, "Autograd", with_keyset=True)
    library.register_fake(f"onepass::{_name}", _fakes, lib=_LIBRARY)

"""The operations that stand in a compiled graph for fused regions: their schemas, fakes and gradients.

`onepass::region` gets the tensors, the region's self-contained text, sizes that no tensor states, and what the tensors
are of the graph where their memory is written anew without a word (`sources`, else empty). The backward recomputes
through the original calls. Registered at import; who runs a region is runner.py's to say.
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
from ..lowering.masks.block_map import CALL
from ..process_state import registered
from . import executors
from .region_call import all_sizes, call_of
from .runner import Runner, one_line

SCHEMA = "(Tensor[] tensors, str program, SymInt[] sizes, str sources='') -> Tensor[]"
SCHEMA_BACKWARD = "(Tensor?[] grads, Tensor[] tensors, str program, SymInt[] sizes, bool[] needed) -> Tensor[]"
log = logging.getLogger(__name__)


class Original:
    """Runs a region that cannot be made again here by its original calls."""

    def __init__(self, known: compiled_region.Carried):
        self.known = known

    def __call__(self, tensors, numbers) -> list[torch.Tensor]:
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
_NAMES = ("region", "region.import_onepass_operator")  # the second in packages of AOTInductor's: an error names it
_BELOW, _BELOW_AUTOGRAD = torch._C._after_ADInplaceOrView_keyset, torch._C._after_autograd_keyset
_STRAIGHT: dict[int, bool] = registered({}, "runners")


def _run(tensors, program, sizes, sources=""):
    sizes = sizes or ()  # a package of AOTInductor's gives None for an empty list
    if torch._C._is_any_autocast_enabled():  # a region's types are all said; what autocast changes is there as casts
        with torch._C._DisableAutocast():
            return _run(tensors, program, sizes, sources)
    CALL.sources = sources
    found = _RUNNERS.get(program) or runner(program)
    return found(tensors, sizes)


def _run_or_record(keys, tensors, program, sizes, sources=""):
    """The autograd layer: straight to `_run` if nothing is recorded and no mode or subclass waits below. The original
    calls carry the tangents of forward-mode derivatives."""
    sizes = sizes or ()
    if forward_ad._current_level >= 0 and any(forward_ad.unpack_dual(t).tangent is not None for t in tensors):
        known = compiled_region.carried(program)
        return list(known.program.results(*tensors, sizes=all_sizes(known, tensors, sizes)))
    raw = keys.raw_repr()
    straight = _STRAIGHT.get(raw)
    if straight is None:
        last = (keys & _BELOW).highestPriorityTypeId()
        straight = _STRAIGHT[raw] = last in (torch._C.DispatchKey.CPU, torch._C.DispatchKey.CUDA)
    if not (torch.is_grad_enabled() and any([t.requires_grad for t in tensors])):
        if straight:
            return _run(tensors, program, sizes, sources)
        return torch.ops.onepass.region.default.redispatch(keys & _BELOW_AUTOGRAD, tensors, program, sizes, sources)
    return list(_Recorded.apply(keys & _BELOW_AUTOGRAD, program, sizes, sources, *tensors))


class _Recorded(torch.autograd.Function):
    @staticmethod
    def forward(keys, program, sizes, sources, *tensors):
        found = torch.ops.onepass.region.default.redispatch(keys, list(tensors), program, sizes, sources)
        return tuple(x.data if x._is_view() else x for x in found)  # of a view no write in place could be recorded

    @staticmethod
    def setup_context(ctx, inputs, output):
        _, ctx.program, ctx.sizes, _, *tensors = inputs
        ctx.without_version = {k: t for k, t in enumerate(tensors) if t.is_inference()}  # autograd saves none of these
        ctx.save_for_backward(*[None if t.is_inference() else t for t in tensors])
        ctx.set_materialize_grads(False)
        wanted = {k for k, tensor in enumerate(tensors) if tensor.requires_grad}
        paths = compiled_region.carried(ctx.program).program.differentiable
        ctx.mark_non_differentiable(*[o for o, path in zip(output, paths, strict=True) if not path & wanted])

    @staticmethod
    def backward(ctx, *grads):
        paths = compiled_region.carried(ctx.program).program.differentiable
        reached = frozenset().union(*(path for path, grad in zip(paths, grads, strict=True) if grad is not None))
        needed = [bool(n) and k in reached for k, n in enumerate(ctx.needs_input_grad[4:])]
        tensors = [ctx.without_version.get(k, t) for k, t in enumerate(ctx.saved_tensors)]
        found = iter(torch.ops.onepass.region_backward(list(grads), tensors, ctx.program, ctx.sizes, needed))
        return None, None, None, None, *[next(found) if n else None for n in needed]


def _fakes(tensors, program, sizes, sources=""):
    known = compiled_region.carried(program)
    metas, call = known.program.output_metas, call_of(known, tensors, sizes)
    return [_fake(m.device, kind, tensors) for m, kind in zip(metas, call.results, strict=True)]


for _name in _NAMES:
    _LIBRARY.define(f"{_name}{SCHEMA}", tags=(torch.Tag.pt2_compliant_tag,))
    _LIBRARY.impl(_name, _run, "CompositeExplicitAutograd")
    _LIBRARY.impl(_name, _run_or_record, "Autograd", with_keyset=True)
    library.register_fake(f"onepass::{_name}", _fakes, lib=_LIBRARY)


def _fake(device: str, kind, tensors) -> torch.Tensor:
    dtype, shape, strides = kind
    like = next((t for t in tensors if t.device.type == device), tensors[0])
    if strides is None:
        return like.new_empty(shape, dtype=dtype)
    return like.new_empty_strided(shape, strides, dtype=dtype)


# The backward ---------------------------------------------------------------------------------------------------------


@library.custom_op("onepass::region_backward", mutates_args=(), schema=SCHEMA_BACKWARD)
def region_backward(
    grads: list[torch.Tensor | None], tensors: list[torch.Tensor], program: str, sizes: list[int], needed: list[bool]
) -> list[torch.Tensor]:
    """Recomputes through the original calls under autograd."""
    known = compiled_region.carried(program)
    values = all_sizes(known, tensors, sizes)
    with torch.inference_mode(False), torch._C._DisableAutocast(), _autograd_again():
        own = [t.clone() if t.is_inference() else t.detach() for t in tensors]
        leaves = [t.requires_grad_(n) for t, n in zip(own, needed, strict=True)]
        wanted = [t for t in leaves if t.requires_grad]
        pairs = zip(known.program.results(*leaves, sizes=values), grads, strict=True)
        reached = [(r, g) for r, g in pairs if r.requires_grad and g is not None]
        if not reached:
            return [torch.zeros_like(t) for t in wanted]
        results, given = zip(*reached, strict=True)
        found = torch.autograd.grad(results, wanted, given, allow_unused=True)
    pairs = zip(found, wanted, strict=True)
    return [torch.zeros_like(t) if g is None else torch.empty_like(t).copy_(g) for g, t in pairs]


@region_backward.register_fake
def _(grads, tensors, program, sizes, needed):
    return [torch.empty_like(t) for t, n in zip(tensors, needed, strict=True) if n]


def _no_second(ctx, *grads):
    raise NotImplementedError(
        "onepass has no derivative of its backward pass: for gradients of gradients (create_graph=True), "
        "run the function as it was before torch.compile, or compile it with another backend"
    )


region_backward.register_autograd(_no_second)


class _autograd_again:
    """Records gradients inside of an operation, where the dispatcher has switched autograd off."""

    def __enter__(self):
        excluded = torch._C._dispatch_tls_local_exclude_set()
        for name in ("AutogradFunctionality", "AutogradOther", "AutogradCPU", "AutogradCUDA"):
            kind = getattr(torch._C.DispatchKey, name, None)
            excluded = excluded if kind is None else excluded.remove(kind)
        included = torch._C._dispatch_tls_local_include_set()
        self.entered = [torch._C._ForceDispatchKeyGuard(included, excluded), torch.enable_grad()]
        for guard in self.entered:
            guard.__enter__()

    def __exit__(self, *error):
        for guard in reversed(self.entered):
            guard.__exit__(*error)

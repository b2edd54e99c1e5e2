"""The operations of a region in training: the forward that also gives what its backward reads, and the backward.

Both are functional, so a compiler's joint graph has one node for each and keeps the saved values between them. A region
without a derived backward has `onepass::region` as its forward, and its backward computes it again by autograd.
Example: `Recorded.apply(keys, program, sizes, sources, q, k, v)` gives results that have gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple

import torch
from torch import library
from torch._functorch.utils import unwrap_dead_wrappers
from torch.autograd import forward_ad

from ..compiler import compiled_region
from ..egraph.forks import lock
from ..lowering.masks.block_map import NamedTensors
from ..process_state import registered
from ..training.plans import Backward, Training, training
from ..training.programs import gradients_by_autograd, recorded_gradients
from .executors import ORIGINAL
from .region_call import all_sizes, call_of, fake_results, has_tangent
from .training_runners import BackwardRunner, ForwardRunner, size_class

SCHEMA = "(Tensor[] tensors, str program, SymInt[] sizes, bool[] needed, str sources='') -> Tensor[]"
SCHEMA_BACKWARD = (
    "(Tensor?[] grads, Tensor[] tensors, Tensor[] kept, str program, SymInt[] sizes, bool[] needed, "
    "bool[] recorded, str sources='') -> Tensor[]"
)
Flags = tuple[bool, ...]
_LOCK = lock()
_FORWARDS: dict[tuple[str, Flags], ForwardRunner] = registered({}, "runners", _LOCK)
_ORDINARY: dict[str, int] = registered({}, "runners")  # keys of the dispatcher, by device
_BACKWARDS: dict[tuple[str, Flags, Flags, Flags], BackwardRunner] = registered({}, "runners", _LOCK)
_REPEATED: dict[tuple, RepeatedBackward | None] = registered({}, "runners", _LOCK)


class Recorded(torch.autograd.Function):
    """A region whose gradients are recorded.

    The keys are those of the dispatcher below autograd; None if nothing waits there but what runs: each trip through
    the dispatcher takes the host some 10 microseconds.
    """

    @classmethod
    def apply(cls, *args: Any) -> tuple[torch.Tensor, ...]:
        """torch's own, which looks at the signature of `forward` in every call: that takes the host 40 microseconds."""
        if torch._C._are_functorch_transforms_active():
            return super().apply(*args)
        return super(torch.autograd.Function, cls).apply(*unwrap_dead_wrappers(args))

    @staticmethod
    def forward(
        keys: torch._C.DispatchKeySet | None, program: str, sizes: Sequence[int], sources: str, *tensors: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        needed = [t.requires_grad for t in tensors]
        found = training(program, needed)
        given = list(tensors), program, sizes
        if isinstance(found, str):
            operation = torch.ops.onepass.region.default
            run = operation if keys is None else partial(operation.redispatch, keys)
            results = run(*given, sources)
        else:
            operation = torch.ops.onepass.region_train.default
            run = _run if keys is None else partial(operation.redispatch, keys)
            results = run(*given, needed, sources)
        return tuple(x.data if x._is_view() else x for x in results)  # of a view no write in place could be recorded

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple[torch.Tensor, ...]) -> None:
        _, ctx.program, ctx.sizes, ctx.sources, *tensors = inputs
        ctx.strides = [*map(torch.Tensor.stride, output)]
        ctx.recorded = tuple([t.requires_grad for t in tensors])
        seen, inner = _kept(training(ctx.program, ctx.recorded), output)
        ctx.watched = [_Watched(x) for x in seen if _is_plain(x)]
        kept = (*seen, *inner)
        saved = (*tensors, *(x.data if _is_plain(x) else x for x in kept))
        ctx.without_version = {k: t for k, t in enumerate(saved) if t.is_inference()}  # autograd saves none of these
        ctx.save_for_backward(*[None if t.is_inference() else t for t in saved])
        ctx.set_materialize_grads(False)
        wanted = {k for k, tensor in enumerate(tensors) if tensor.requires_grad}
        paths = compiled_region.carried(ctx.program).program.differentiable
        reached = [bool(path & wanted) for path in paths] + [False] * (len(output) - len(paths))
        ctx.mark_non_differentiable(*[o for o, is_reached in zip(output, reached, strict=True) if not is_reached])

    @staticmethod
    @torch._disable_dynamo  # called from a frame that Dynamo watches (`loss.backward()` in it), it would be traced
    def backward(ctx: Any, *grads: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        saved = ctx.saved_tensors
        key = ctx.program, ctx.recorded, ctx.needs_input_grad, tuple([grad is None for grad in grads])
        is_changed = any([watched.changed for watched in ctx.watched])
        found = None if is_changed or ctx.without_version else _repeated(key, ctx, saved, grads)
        if found is None:
            saved = [ctx.without_version.get(k, t) for k, t in enumerate(saved)]
            found = _run_in_full(key, ctx, saved, grads, is_changed)
        return None, None, None, None, *found


def _run_in_full(
    key: tuple, ctx: Any, saved: Sequence[torch.Tensor], grads: Sequence[torch.Tensor | None], is_changed: bool
) -> list[torch.Tensor | None]:
    """The gradients of a region's tensors. is_changed: whether a caller wrote to a result that gradients read."""
    paths = compiled_region.carried(ctx.program).program.differentiable
    grads = tuple(map(_laid_out, grads[: len(paths)], ctx.strides))  # saved values have none
    reached = frozenset().union(*(path for path, grad in zip(paths, grads, strict=True) if grad is not None))
    needed = [bool(n) and k in reached for k, n in enumerate(ctx.needs_input_grad[4:])]
    own, kept = [*saved[: len(needed)]], [*saved[len(needed) :]]
    if is_changed:  # as with the original calls, which do not read results
        with torch.no_grad():
            outputs = torch.ops.onepass.region_train(own, ctx.program, ctx.sizes, [*ctx.recorded], ctx.sources)
        kept = [outputs[k] for k in kept_outputs(_trained(ctx.program, ctx.recorded))]
    arguments = list(grads), own, kept, ctx.program, ctx.sizes, needed, [*ctx.recorded], ctx.sources
    if _is_straight(arguments[:3]):
        call = BackwardCall(*arguments)
        with torch._C._AutoDispatchBelowAutograd():
            found = iter(_run_to_repeat(key, call))
    else:
        found = iter(torch.ops.onepass.region_backward(*arguments))
    return [next(found) if n else None for n in needed]


def _kept(found: Training | str, output: Sequence[torch.Tensor]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """What of a forward's outputs its backward gets: results, and saved values, which nobody else sees."""
    if isinstance(found, str):
        return [], []
    kept = [output[k] for k in kept_outputs(found)]
    return kept[: len(found.stores.read)], kept[len(found.stores.read) :]


def _laid_out(grad: torch.Tensor | None, strides: tuple[int, ...]) -> torch.Tensor | None:
    """A cotangent that lies as its result does: for it a backward was compiled ahead. A compiled graph does the same.

    Example: the gradient of a sum has strides of 0.
    """
    if grad is None or not _is_plain(grad) or grad.stride() == strides:
        return grad
    return grad.new_empty_strided(grad.shape, strides).copy_(grad)


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether it is none of a compiler's own tensors, and counts its changes."""
    return type(tensor) is torch.Tensor and not tensor.is_inference()


@lru_cache(maxsize=64)
def _without_elements(dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    return torch.empty(0, dtype=dtype, device=device)


class _Watched:
    """Whether a tensor was changed in place since. It keeps the tensor's count of changes, and none of its memory."""

    def __init__(self, tensor: torch.Tensor):
        self.version = tensor._version
        self.counter = tensor.detach()
        self.counter.data = _without_elements(tensor.dtype, tensor.device)

    @property
    def changed(self) -> bool:
        """Whether a caller, or the graph, wrote to it."""
        return self.counter._version != self.version


def kept_outputs(found: Training) -> tuple[int, ...]:
    """Positions among a forward's outputs of what its backward gets: results that gradients read, and saved values."""
    return (*found.stores.read, *range(found.results, found.results + len(found.stores.saved)))


# The forward ----------------------------------------------------------------------------------------------------------


def _trained(program: str, needed: Sequence[bool]) -> Training:
    found = training(program, needed)
    assert isinstance(found, Training), found  # the same text was derived when its graph was made
    return found


def _run(tensors, program, sizes, needed, sources=""):
    if torch._C._is_any_autocast_enabled():  # a region's types are all said; what autocast changes is there as casts
        with torch._C._DisableAutocast():
            return _run(tensors, program, sizes, needed, sources)
    with NamedTensors(tensors, sources):
        return forward_runner(program, needed)(tensors, sizes or ())


def forward_runner(program: str, needed: Sequence[bool]) -> ForwardRunner:
    """Who runs the forward of a region in training, made at its first use."""
    key = program, tuple(needed)
    runner = _FORWARDS.get(key)
    if runner is None:
        with _LOCK:
            runner = _FORWARDS.setdefault(key, ForwardRunner(_trained(program, needed)))
    return runner


def _fakes(tensors, program, sizes, needed, sources=""):
    forward = _trained(program, needed).forward
    return fake_results(forward.program.output_metas, call_of(forward, tensors, sizes), tensors)


_LIBRARY = library.Library("onepass", "FRAGMENT")
_LIBRARY.define(f"region_train{SCHEMA}", tags=(torch.Tag.pt2_compliant_tag,))
_LIBRARY.impl("region_train", _run, "CompositeExplicitAutograd")
library.register_fake("onepass::region_train", _fakes, lib=_LIBRARY)


# The backward ---------------------------------------------------------------------------------------------------------


class BackwardCall(NamedTuple):
    """The arguments of the backward operation.

    kept: the results and saved values that `kept_outputs` names. recorded: the inputs whose gradients were recorded.
    sources: as the forward has them.
    """

    grads: list[torch.Tensor | None]
    tensors: list[torch.Tensor]
    kept: list[torch.Tensor]
    program: str
    sizes: list[int]
    needed: list[bool]
    recorded: list[bool]
    sources: str = ""

    def originals(self) -> Callable[[Sequence[torch.Tensor]], tuple]:
        """A function that computes the region's results again by the original calls."""
        known = compiled_region.carried(self.program)
        values = all_sizes(known, self.tensors, self.sizes)
        return lambda given: known.program.results(*given, sizes=values)


def _run_backward(*arguments: Any) -> list[torch.Tensor]:
    """The gradients of the needed inputs: by their plan, where the forward ran by its own; else by autograd."""
    call = BackwardCall(*arguments)
    key = call.program, tuple(call.recorded), tuple(call.needed), tuple([grad is None for grad in call.grads])
    if (again := _known(key)) is not None and not torch._C._is_any_autocast_enabled():
        with NamedTensors(call.tensors, call.sources):
            cotangents = [grad for grad in call.grads if grad is not None]
            found = again.gradients([*call.tensors, *call.kept, *cotangents], call.sizes)
        if found is not None:
            return [gradient for gradient, needed in zip(found, call.needed) if needed]
    return _run_to_repeat(key, call)


def _run_to_repeat(key: tuple, call: BackwardCall) -> list[torch.Tensor]:
    """The same, and keeps how it ran for the next call with this key."""
    found = _as_forward_ran(call)
    if isinstance(found, str) or found.fell_back:
        return gradients_by_autograd(call.originals(), call.tensors, call.grads, call.needed)
    with torch._C._DisableAutocast(), NamedTensors(call.tensors, call.sources):
        gradients = _planned(found, call)
    if key not in _REPEATED:
        _REPEATED[key] = RepeatedBackward.of(call)
    return gradients


def _as_forward_ran(call: BackwardCall) -> Training | str:
    """The region as the runner of its forward has it, who knows what it did not save. Plans may have been made anew
    since: a process keeps the latest ones."""
    runner = _FORWARDS.get((call.program, tuple(call.recorded)))
    return training(call.program, call.recorded) if runner is None else runner.training


def _runs_originals(found: Training, call: BackwardCall) -> bool:
    """Whether the forward runs the original calls at such sizes, so that there is nothing saved to read."""
    if not found.originals:
        return False
    sizes = all_sizes(found.forward, call.tensors, call.sizes)
    return size_class(found, call.tensors[0].device, sizes) in found.originals


def _planned(found: Training, call: BackwardCall) -> list[torch.Tensor]:
    """By the plan for these gradients and cotangents, else by the one for all, with zeros for missing cotangents."""
    grads, needed = call.grads, tuple(call.needed)
    given = tuple(g is not None for g in grads)
    if not any(needed):
        return []
    made = found.backward(needed, given)
    if made is None:
        metas = call_of(found.forward, call.tensors, call.sizes).results
        given = found.every.given
        zeros = lambda kind: call.tensors[0].new_zeros(kind[1], dtype=kind[0])
        pairs = zip(grads, metas[: len(grads)], given, strict=True)
        grads = [zeros(kind) if g is None and asked else g for g, kind, asked in pairs]
        made, wanted = found.every, found.needed
    else:
        wanted = needed
    kept = dict(zip(kept_outputs(found), call.kept, strict=True))
    runner = backward_runner(call.program, found, wanted, made)
    if _runs_originals(found, call):
        runner.say(f"{ORIGINAL}, as its forward")
        return gradients_by_autograd(call.originals(), call.tensors, call.grads, call.needed)
    return runner.gradients(grads, call.tensors, kept, call.sizes, needed)


def backward_runner(program: str, found: Training, wanted: Flags, made: Backward) -> BackwardRunner:
    """Who runs one backward of a region, made at its first use. wanted: the inputs whose gradients are asked for."""
    key = program, found.needed, wanted, made.given
    runner = _BACKWARDS.get(key)
    if runner is None:
        with _LOCK:
            runner = _BACKWARDS.setdefault(key, BackwardRunner(found, made))
    return runner


def _is_straight(given: Sequence[Sequence[torch.Tensor | None]]) -> bool:
    """Whether nothing but what runs waits for a backward: no mode, transform, tangent, recording or subclass."""
    return _is_plain_call() and all([t is None or _is_ordinary(t) for tensors in given for t in tensors])


def _is_plain_call() -> bool:
    """Whether no mode, transform, recording or level of dual numbers waits for what is called now."""
    waits = torch.is_grad_enabled() or torch._C._len_torch_dispatch_stack() or forward_ad._current_level >= 0
    return not waits and not torch._C._are_functorch_transforms_active()


def _is_ordinary(tensor: torch.Tensor) -> bool:
    """Whether the dispatcher does with a tensor what it does with every ordinary one of its device."""
    keys, device = torch._C._dispatch_keys(tensor).raw_repr(), tensor.device.type
    if device not in _ORDINARY:
        _ORDINARY[device] = torch._C._dispatch_keys(torch.empty(0, device=tensor.device)).raw_repr()
    return keys == _ORDINARY[device]


class RepeatedBackward(NamedTuple):
    """How a backward ran by its plan, so that calls like it need no more than a look at their tensors.

    places: of what the runner reads, in its order, among saved tensors and then the cotangents that there are. results:
    of the runner's results, by input; None where no gradient is asked for.
    """

    runner: BackwardRunner
    found: Training
    places: tuple[int, ...]
    results: tuple[int | None, ...]

    @classmethod
    def of(cls, call: BackwardCall) -> RepeatedBackward | None:
        """How this call ran; None if not by the plan for its gradients alone."""
        found, needed = _as_forward_ran(call), tuple(call.needed)
        given = tuple([g is not None for g in call.grads])
        if isinstance(found, str) or not any(needed):
            return None
        made = found.backward(needed, given)
        if made is None or not set(made.gradients) >= {k for k, n in enumerate(needed) if n}:
            return None
        count, kept = len(call.tensors), kept_outputs(found)
        places = (*range(count), *(count + kept.index(k) for k in made.kept))
        cotangents = [count + len(kept) + k for k in range(sum(given))]
        results = tuple(made.gradients.index(k) if n else None for k, n in enumerate(needed))
        return cls(backward_runner(call.program, found, needed, made), found, (*places, *cotangents), results)

    def gradients(self, tensors: Sequence[torch.Tensor], sizes: Sequence[int]) -> list[torch.Tensor | None] | None:
        """By the same kernels, if these tensors are like the last call's; None if not."""
        if self.found.fell_back or self.found.originals:
            return None
        found = self.runner.repeated([tensors[k] for k in self.places], sizes)
        return None if found is None else [None if k is None else found[k] for k in self.results]


def _known(key: tuple) -> RepeatedBackward | None:
    """How a backward of this key ran last; None if its plans were made anew since."""
    again = _REPEATED.get(key)
    if again is not None and _FORWARDS.get(key[:2], again.runner).training is not again.found:
        _REPEATED.pop(key, None)
        return None
    return again


def _repeated(
    key: tuple, ctx: Any, saved: Sequence[torch.Tensor], grads: Sequence[torch.Tensor | None]
) -> list[torch.Tensor | None] | None:
    """The gradients as the last call found them; None if this one is not like it."""
    again = _known(key)
    if again is None or not _is_plain_call():
        return None
    with torch._C._AutoDispatchBelowAutograd(), NamedTensors(saved, ctx.sources):
        cotangents = [_laid_out(grad, strides) for grad, strides in zip(grads, ctx.strides) if grad is not None]
        return again.gradients([*saved, *cotangents], ctx.sizes)


def _run_or_record_backward(*arguments):
    """The autograd layer: straight to what runs, unless a second derivative is recorded or a tangent is carried.

    It calls another operation, `region_gradients`. A compiled graph records that one and skips this layer, which would
    take the host some 20 microseconds more.
    """
    read = [t for given in arguments[:3] for t in given if t is not None]
    if (torch.is_grad_enabled() and any([t.requires_grad for t in read])) or any(map(has_tangent, read)):
        return _recorded_backward(*arguments)
    with torch._C._AutoDispatchBelowAutograd():
        return torch.ops.onepass.region_gradients.default(*arguments)


def _recorded_backward(*arguments):
    """The gradients by the original calls, whose own derivatives are torch's."""
    call = BackwardCall(*arguments)
    return recorded_gradients(call.originals(), call.tensors, call.grads, call.needed)


def _fake_gradients(*arguments):
    call = BackwardCall(*arguments)
    return [torch.empty_like(t) for t, n in zip(call.tensors, call.needed, strict=True) if n]


for _name in ("region_backward", "region_gradients"):
    _LIBRARY.define(f"{_name}{SCHEMA_BACKWARD}", tags=(torch.Tag.pt2_compliant_tag,))
    _LIBRARY.impl(_name, _run_backward, "CompositeExplicitAutograd")
    library.register_fake(f"onepass::{_name}", _fake_gradients, lib=_LIBRARY)
_LIBRARY.impl("region_backward", _run_or_record_backward, "Autograd")
for _batched in ("Batched", "FuncTorchBatched"):  # a batch of cotangents
    _LIBRARY.impl("region_backward", _recorded_backward, _batched)

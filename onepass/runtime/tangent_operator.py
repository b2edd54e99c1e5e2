"""The operation of a region in forward mode, and how dual numbers lead to it.

torch's forward mode calls a region with dual tensors: pairs of a tensor and its tangent. Their parts go to
`onepass::region_tangents`, which is functional, so a compiler's graph has one node for it: it computes results and
tangents by one plan. Where none is derived, the original calls carry the tangents. Invariant: a tangent is never lost.
Example: `with_tangents(keys, [dual_q, k, v], program, [], "")` gives dual results.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import library

from ..compiler import compiled_region
from ..egraph.forks import lock
from ..lowering.masks.block_map import NamedTensors
from ..process_state import registered
from ..report import records
from ..training.report import forward_mode_line
from ..training.tangent_plans import TangentPlan, tangent_plan
from ..training.tangent_programs import spread, tangent_gradients, tangent_gradients_below_autograd
from .region_call import all_sizes, call_of, fake_results
from .runner import Runner

SCHEMA = "(Tensor[] tensors, Tensor[] tangents, str program, SymInt[] sizes, bool[] given, str sources='') -> Tensor[]"
SCHEMA_BACKWARD = (
    "(Tensor?[] grads, Tensor[] tensors, Tensor[] tangents, str program, SymInt[] sizes, bool[] given, bool[] needed) "
    "-> Tensor[]"
)
Flags = tuple[bool, ...]
Tangents = Sequence[torch.Tensor | None]
_LOCK = lock()
_RUNNERS: dict[tuple[str, Flags], TangentRunner] = registered({}, "runners", _LOCK)
_LINES: dict[tuple[str, str | Flags], tuple[str, str]] = registered({}, "runners", _LOCK)  # for reports: key, line
_BELOW_AUTOGRAD = torch._C._after_autograd_keyset


class TangentRunner(Runner):
    """Forward mode of a region by its plan. Its last resort is the original calls with dual numbers."""

    def __init__(self, plan: TangentPlan):
        super().__init__(plan.region)

    def say(self, who: str) -> None:
        """Who ran, for the report's line on forward mode."""
        if who != self.ran:
            self.ran = who
            records.ran_forward_mode(self.found.report.key, who)


# Dual numbers ---------------------------------------------------------------------------------------------------------


def with_tangents(
    keys: torch._C.DispatchKeySet, tensors: Sequence[torch.Tensor], program: str, sizes: Sequence[int], sources: str
) -> list[torch.Tensor] | None:
    """The region's results with their tangents; None if no tensor has a tangent. keys: of the call, with autograd's."""
    if not torch._C._is_fwd_grad_enabled():
        return None
    pairs = [torch._VF._unpack_dual(t, level=0) for t in tensors]
    tangents = [None if tangent is None or tangent._is_zerotensor() else tangent for _, tangent in pairs]
    given = [tangent is not None for tangent in tangents]
    if not any(given):
        return None
    known = compiled_region.carried(program)
    plan = tangent_plan(program, given) if _may_be_taken_apart(tensors, tangents) else NESTED
    _say(program, plan)
    if isinstance(plan, str):
        return list(known.program.results(*tensors, sizes=all_sizes(known, tensors, sizes)))
    arguments = [primal for primal, _ in pairs], [t for t in tangents if t is not None], program, sizes, given, sources
    found = torch.ops.onepass.region_tangents.default.redispatch(keys & _BELOW_AUTOGRAD, *arguments)
    results, changes = found[: len(known.program.outputs)], dict(zip(plan.of, found[len(known.program.outputs) :]))
    return [torch._VF._make_dual(r, changes[k], level=0) if k in changes else r for k, r in enumerate(results)]


def _say(program: str, plan: TangentPlan | str) -> None:
    """What became of the region's forward mode, for its report."""
    said = program, plan if isinstance(plan, str) else plan.given
    if said not in _LINES:
        region = compiled_region.read(program) if isinstance(plan, str) else plan.region
        _LINES[said] = region.report.key, forward_mode_line(plan)
    records.found_forward_mode(*_LINES[said])


NESTED = "another function transform, or autograd, wants derivatives of the tangents"


def _may_be_taken_apart(tensors: Sequence[torch.Tensor], tangents: Tangents) -> bool:
    """Whether nothing but forward mode sees these dual numbers: no transform around it, and autograd below it at most.

    Autograd at the same level may ask for the tangents of gradients, and would find none.
    """
    if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
        return False
    if any(torch._C._functorch.is_legacy_batchedtensor(t) for t in tangents if t is not None):
        return False  # a batch of tangents, as a vectorized jacobian has: the primals do not show it
    depth = torch._C._functorch.get_dynamic_layer_stack_depth()
    if depth == 0:
        return True
    return depth == 1 and torch._C._functorch.peek_interpreter_stack().key() == torch._C._functorch.TransformType.Jvp


# The operation --------------------------------------------------------------------------------------------------------


def _planned(program: str, given: Sequence[bool]) -> TangentPlan:
    found = tangent_plan(program, given)
    assert isinstance(found, TangentPlan), found  # the same text was derived when its graph was made
    return found


def _run(tensors, tangents, program, sizes, given, sources=""):
    if torch._C._is_any_autocast_enabled():  # a region's types are all said; what autocast changes is there as casts
        with torch._C._DisableAutocast():
            return _run(tensors, tangents, program, sizes, given, sources)
    key = program, tuple(given)
    runner = _RUNNERS.get(key)
    if runner is None:
        with _LOCK:
            runner = _RUNNERS.setdefault(key, TangentRunner(_planned(program, given)))
    with NamedTensors(tensors, sources):
        return runner([*tensors, *tangents], sizes or ())


def _fakes(tensors, tangents, program, sizes, given, sources=""):
    region = _planned(program, given).region
    both = [*tensors, *tangents]
    return fake_results(region.program.output_metas, call_of(region, both, sizes), both)


def _record(keys, tensors, tangents, program, sizes, given, sources=""):
    """The autograd layer: the results' gradients are derived, those of tangents are computed by the original calls."""
    below = keys & _BELOW_AUTOGRAD
    arguments = tensors, tangents, program, sizes, given, sources
    if not (torch.is_grad_enabled() and any(t.requires_grad for t in (*tensors, *tangents))):
        return torch.ops.onepass.region_tangents.default.redispatch(below, *arguments)
    results = torch.ops.onepass.region(tensors, program, sizes, sources)  # saved values stand behind them
    results = results[: len(compiled_region.carried(program).program.outputs)]
    return [*results, *_RecordedTangents.apply(below, arguments, *tensors, *tangents)]


class _RecordedTangents(torch.autograd.Function):
    """Tangents whose gradients are recorded."""

    @staticmethod
    def forward(ctx: Any, keys: torch._C.DispatchKeySet, arguments: tuple, *read: torch.Tensor) -> tuple:
        tensors, _, ctx.program, ctx.sizes, ctx.given, _ = arguments
        ctx.inputs = len(tensors)
        ctx.save_for_backward(*read)
        ctx.set_materialize_grads(False)
        found = torch.ops.onepass.region_tangents.default.redispatch(keys, *arguments)
        return tuple(found[len(compiled_region.carried(ctx.program).program.outputs) :])

    @staticmethod
    @torch._disable_dynamo  # as in `Recorded`
    def backward(ctx: Any, *grads: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        needed = list(ctx.needs_input_grad[2:])
        tensors, tangents = ctx.saved_tensors[: ctx.inputs], ctx.saved_tensors[ctx.inputs :]
        arguments = list(grads), list(tensors), list(tangents), ctx.program, ctx.sizes, ctx.given, needed
        found = iter(torch.ops.onepass.region_tangents_backward(*arguments))
        return None, None, *[next(found) if n else None for n in needed]


def _run_backward(grads, tensors, tangents, program, sizes, given, needed):
    """The gradients of the needed tensors and tangents, by autograd on the original calls with dual numbers."""
    arguments = _of_original_calls(grads, tensors, tangents, program, sizes, given, needed)
    return tangent_gradients_below_autograd(*arguments)


def _record_backward(keys, *arguments):
    """The autograd layer: where gradients of these gradients are wanted, the original calls stay in sight."""
    read = [t for group in arguments[:3] for t in group if t is not None]
    if torch.is_grad_enabled() and any(t.requires_grad for t in read):
        return tangent_gradients(*_of_original_calls(*arguments))
    return torch.ops.onepass.region_tangents_backward.default.redispatch(keys & _BELOW_AUTOGRAD, *arguments)


def _of_original_calls(grads, tensors, tangents, program, sizes, given, needed) -> tuple:
    """The arguments of `tangent_gradients`."""
    known = compiled_region.carried(program)
    values = all_sizes(known, tensors, sizes)
    cotangents = dict(zip(_planned(program, given).of, grads, strict=True))
    run = lambda duals: known.program.results(*duals, sizes=values)
    return run, tensors, spread(tangents, given), cotangents, needed


def _fake_gradients(grads, tensors, tangents, program, sizes, given, needed):
    return [torch.empty_like(t) for t, n in zip([*tensors, *tangents], needed, strict=True) if n]


_LIBRARY = library.Library("onepass", "FRAGMENT")
_LIBRARY.define(f"region_tangents{SCHEMA}", tags=(torch.Tag.pt2_compliant_tag,))
_LIBRARY.impl("region_tangents", _run, "CompositeExplicitAutograd")
_LIBRARY.impl("region_tangents", _record, "Autograd", with_keyset=True)
library.register_fake("onepass::region_tangents", _fakes, lib=_LIBRARY)
_LIBRARY.define(f"region_tangents_backward{SCHEMA_BACKWARD}", tags=(torch.Tag.pt2_compliant_tag,))
_LIBRARY.impl("region_tangents_backward", _run_backward, "CompositeExplicitAutograd")
_LIBRARY.impl("region_tangents_backward", _record_backward, "Autograd", with_keyset=True)
library.register_fake("onepass::region_tangents_backward", _fake_gradients, lib=_LIBRARY)

"""Executors of a region: each takes a region, example tensors and the kind of call, and returns a function.

The function takes tensors of the same shapes, strides and dtypes. Invariant: it returns new tensors with the strides
of the original calls, none of which shares memory with an input or with another result.
Example: `EXECUTORS["tiled"](found, tensors, call)(tensors)`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any

import torch

from ..compiler import disk_cache
from ..compiler.compiled_region import Carried, Fused
from ..compiler.verified_kernels import require_equal
from ..errors import OnepassError
from ..graph.op_kinds import operation_named
from ..graph.program import GETITEM, Program
from ..lowering import executors as plan_executors
from ..lowering.executors import KERNELS, TILED, PlanExecutor, SettingsRefused
from ..lowering.plan.records import NotPlannable, Plan
from ..lowering.stage_times import stage
from ..lowering.tiled.compiled_tiles import WITHOUT_PASSES, compiled_graph, in_a_thread
from ..report import records
from .region_call import RegionCall, ResultKind, Tensors

Run = Callable[[Tensors], list[torch.Tensor]]
Prepare = Callable[[Fused, Tensors, RegionCall], Run]
ORIGINAL = "the original calls"
COMPILED = "the original calls, compiled"
COMPILED_TILES, ROUNDING_TILES = plan_executors.COMPILED_TILES.name, plan_executors.ROUNDING_TILES.name
TILES = (ROUNDING_TILES, COMPILED_TILES)
LAST = {"cuda": ORIGINAL}  # who runs where no kernel does; the tiled executor's loops would leave a GPU idle


class NotTuned(OnepassError):
    """A setting that was found once and cannot run here; the message says why."""


class EntryNotRead(IndexError):
    """The original calls read an entry of a table behind a length, which a plan leaves out: it is out of range."""


def preference(option: str, plan: Plan, device: torch.device) -> tuple[str, ...]:
    """The executors to try on a device, best first. `option` is the user's choice of an executor."""
    names = plan_executors.order(option, plan, device)
    return names if TILED.name in names or plan.piece else (*names, LAST.get(device.type, TILED.name))


def by_measurement(names: tuple[str, ...], found: Fused, sizes: Mapping[str, int]) -> dict[str, str]:
    """What the report calls each executor, in the order to try: plain Triton before Gluon where it measured faster."""
    said = {name: name for name in names}
    if found.options.executor != "auto" or names[:2] != KERNELS:
        return said
    if part := plan_executors.GLUON.slowdown(found.plan, sizes):
        del said["triton"]
        return {"triton": f"triton, {part:.0%} faster than gluon when measured", **said}
    return said


def of_plan(executor: PlanExecutor) -> Prepare:
    """An executor of regions that runs a region's plan. What was noticed goes into the region's report."""

    def prepare(found: Fused, tensors: Tensors, call: RegionCall) -> Run:
        with stage("kernels"):
            return ready_for(found, tensors, call)

    def ready_for(found: Fused, tensors: Tensors, call: RegionCall) -> Run:
        inputs, given = dict(zip(found.names, tensors)), (_strides(found, call), disk_cache.OF_THIS_VERSION)
        if found.options.verify == "kernel":
            said = require_equal(executor, found.plan, inputs, call.sizes, *given, call.deterministic)
            records.note(found.report.key, said)
        ready = executor.prepare(found.plan, inputs, call.sizes, *given, call.deterministic)
        if call.deterministic and not ready.deterministic:
            raise NotPlannable("its kernels add in an order that is not fixed, and a deterministic result is asked for")
        for sentence in ready.notes:
            records.note(found.report.key, sentence)
        run: Any = ready.run if ready.has_strides else laid_out(ready.run, call)
        run.who = ready.executor if ready.deterministic else f"{ready.executor}, adding in no fixed order"
        return run

    return prepare


def compile_ahead(name: str, found: Fused, tensors: Tensors, call: RegionCall, device: torch.device) -> None:
    """Compiles what the executor of a name would first run on a device, for tensors like these, which are on "meta"."""
    inputs, given = dict(zip(found.names, tensors)), (_strides(found, call), disk_cache.OF_THIS_VERSION)
    executor = plan_executors.EXECUTORS[name]
    executor.compile_ahead(found.plan, inputs, device, call.sizes, *given, call.deterministic)


def _strides(found: Fused, call: RegionCall) -> dict[str, tuple[int, ...]]:
    """Of the plan's outputs by name, where the original calls' are known."""
    outputs = (output.name for output in found.plan.outputs)
    return {name: strides for name, (_, _, strides) in zip(outputs, call.results) if strides is not None}


def tuned(settings: Mapping[str, object]) -> Prepare:
    """An executor with the settings that the tuner found, by name."""

    def prepare(found: Fused, tensors: Tensors, call: RegionCall) -> Run:
        try:
            return of_plan(plan_executors.ConfiguredExecutor(settings))(found, tensors, call)
        except SettingsRefused as error:
            raise NotTuned(str(error)) from error

    return prepare


def original(found: Fused | Carried, tensors: Tensors, call: RegionCall) -> Run:
    """The region's own calls, as the user wrote them. Raises EntryNotRead."""
    run = found.program.bound({**found.program.sizes_of(tensors), **call.sizes}, tensors[0].device)
    return laid_out(_naming_entries(run, found), call)


def compiled(found: Fused, tensors: Tensors, call: RegionCall) -> Run:
    """The region's own calls as Inductor compiles them for these sizes, at the first run."""
    known: list[Callable[..., Tensors]] = []

    def run(given: Tensors) -> Tensors:
        if not known:
            graph = found.program.graph({**found.program.sizes_of(given), **call.sizes}, given[0].device)
            known.append(in_a_thread(lambda: compiled_graph(graph, given)))
        with torch.no_grad():
            return known[0](*given)

    return laid_out(run, call)


def hides_entries(found: Fused | Carried) -> bool:
    """Whether a plan reads no entry of a table behind a length, as the original calls do."""
    return isinstance(found, Fused) and any(loop.hides_places for kernel in found.plan.kernels for loop in kernel.loops)


def is_out_of_range(error: Exception) -> bool:
    """Whether the original calls failed at an index out of range."""
    return isinstance(error, IndexError) or "out of bounds" in str(error)


def _naming_entries(run: Callable[[Tensors], Tensors], found: Fused | Carried) -> Callable[[Tensors], Tensors]:
    """The run, which raises EntryNotRead for an index out of range that the plan may not read."""
    if not hides_entries(found):
        return run

    def naming(given: Tensors) -> Tensors:
        try:
            return run(given)
        except Exception as error:
            if is_out_of_range(error):
                raise EntryNotRead(*error.args) from error
            raise

    return naming


def rounds_products(program: Program) -> bool:
    """Whether a program itself rounds each of its products to bfloat16: q @ k does, q.float() @ k.float() does not."""
    calls = [node for node in program.nodes if node.target != GETITEM]
    kinds = {node.name: operation_named(node.target.split(".")[1]).kind for node in calls}
    products = [node for node in calls if kinds[node.name] in ("contraction", "layer", "attention")]
    return {node.meta.dtype for node in products} == {"bfloat16"}


def compiled_step(program: Program, needed: Sequence[bool], tensors: Tensors, sizes: Mapping[str, int]) -> Run:
    """A region's own calls with their gradients as Inductor compiles them, at the first run. Cotangents are ones: none
    is drawn, so that the program draws the same numbers as without it.

    A thread runs them, as in `compiled`; so none may wait for autograd's thread of the device, in a backward.
    """
    device, one = tensors[0].device, ThreadPoolExecutor(1, thread_name_prefix="onepass")
    graph = program.graph({**program.sizes_of(tensors), **sizes}, device)
    stream = torch.cuda.stream(torch.cuda.current_stream(device)) if device.type == "cuda" else nullcontext()
    known: list[Callable[..., Tensors]] = []
    cotangents: list[torch.Tensor] = []

    def step(given: Tensors) -> list[torch.Tensor]:
        from torch._inductor.compile_fx import compile_fx

        with stream, torch.enable_grad():
            leaves = [x.detach().requires_grad_(n) for x, n in zip(given, needed, strict=True)]
            if not known:
                known.append(compile_fx(graph, leaves, config_patches=WITHOUT_PASSES))
            results = [x for x in known[0](*leaves) if x.requires_grad]
            cotangents.extend(map(torch.ones_like, results[len(cotangents) :]))
            wanted = [x for x in leaves if x.requires_grad]
            return [*torch.autograd.grad(results, wanted, cotangents, allow_unused=True)]

    return lambda given: one.submit(step, given).result()


EXECUTORS: dict[str, Prepare] = {name: of_plan(executor) for name, executor in plan_executors.EXECUTORS.items()}
EXECUTORS[ORIGINAL] = original
compiled_tiles, rounding_tiles = of_plan(plan_executors.COMPILED_TILES), of_plan(plan_executors.ROUNDING_TILES)


def laid_out(run: Callable[[Tensors], Tensors], call: RegionCall) -> Run:
    """The run with results that have the original's strides, and none an alias of an input or of another result.

    Which results are copied for that is found at the first call: other calls of the kind have the same views.
    """
    copied: list[bool] = []

    def laid(given: Tensors) -> list[torch.Tensor]:
        results = run(given)
        if not copied:
            copied[:] = _copied(results, given, call)
        return [_copy(x, kind) if c else x for x, kind, c in zip(results, call.results, copied, strict=True)]

    return laid


def _copied(results: Tensors, given: Tensors, call: RegionCall) -> list[bool]:
    """Whether each result is to be copied."""
    taken, found = {t.untyped_storage().data_ptr() for t in given}, []
    for result, kind in zip(results, call.results, strict=True):
        storage = result.untyped_storage().data_ptr()
        found.append(result.stride() != _wanted(result, kind) or storage in taken)
        if not found[-1]:
            taken.add(storage)
    return found


def _copy(result: torch.Tensor, kind: ResultKind) -> torch.Tensor:
    return result.new_empty_strided(result.shape, _wanted(result, kind)).copy_(result)


def _wanted(result: torch.Tensor, kind: ResultKind) -> tuple[int, ...]:
    """The strides of a result: those of the original calls where they are known, else those of contiguous memory."""
    return result.contiguous().stride() if kind[2] is None else kind[2]

"""Who can run a region: each prepares a call of one kind and gives what runs it on tensors like those it was given.

What is run gives new tensors with the original's strides, none an alias of an input or of another.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import torch

from ..errors import OnepassError
from ..report import records


class NotTuned(OnepassError):
    """A setting that was found once and cannot run here; the message says why."""


ORIGINAL = "the original calls"
KERNELS = ("gluon", "triton")
LAST = {"cuda": ORIGINAL}  # who runs where no kernel does; the tiled executor's loops would leave a GPU idle


def runs_kernels(executor: str, devices: Collection[str]) -> bool:
    """Whether kernels are to run a plan whose inputs are on such devices; a plan that has none is then refused."""
    from ..lowering.launch.triton_compat import interpreter_wanted

    return executor != "tiled" and ("cuda" in devices or (executor != "auto" and interpreter_wanted()))


def preference(executor: str, plan, device: torch.device) -> tuple[str, ...]:
    """The executors to try on a device, best first. `executor` is the option of that name.

    Kernels need a GPU; asked for by name, plain Triton also runs in its interpreter.
    """
    from ..lowering.gluon.launch import refusal

    if not runs_kernels(executor, (device.type,)):
        return ("tiled",)
    last = LAST.get(device.type, "tiled")
    if executor == "auto":
        executor = "gluon" if refusal(plan, device) is None else "triton"
    return (*KERNELS[KERNELS.index(executor) :], last)


def by_measurement(names: tuple[str, ...], found, sizes: dict) -> dict[str, str]:
    """What the report calls each executor, in the order to try: plain Triton before Gluon where it measured faster."""
    said = {name: name for name in names}
    if found.options.executor != "auto" or names[:2] != KERNELS:
        return said
    from ..lowering.gluon.launch import slower

    if part := slower(found.plan, sizes):
        del said["triton"]
        return {"triton": f"triton, {part:.0%} faster than gluon when measured", **said}
    return said


def tiled(found, tensors, call) -> Callable:
    """Torch operations, tile by tile; any device."""
    from ..lowering.tiled.executor import tiled_results

    plan, names, sizes = found.plan, found.names, call.sizes
    return lambda given: laid_out(tiled_results(plan, dict(zip(names, given)), sizes), given, call)


def triton(found, tensors, call) -> Callable:
    from ..lowering.triton.launch import launcher

    made = launcher(found.plan)
    run = _bound(made, found, tensors, call)
    _say_shared(found, made)
    return run


def _say_shared(found, made) -> None:
    for name, how in made.shared.items():
        records.note(found.key, f"{name}: {how}")


def gluon(found, tensors, call) -> Callable:
    """Hopper's own form for the kernels that have one; the report says which run as plain Triton, and why."""
    from ..lowering.gluon.launch import launcher

    made = launcher(found.plan)
    run = _bound(made, found, tensors, call)
    for name, reason in made.refusals.items():
        records.note(found.key, f"{name} runs as plain Triton: {reason}")
    _say_shared(found, made)
    for name, choice in made.choices.items():
        records.note(found.key, f"{name} is scheduled: {choice}")
    if plain := {*made.refusals, *made.shared}:
        run.who = "gluon and triton" if len(plain) < len(found.plan.kernels) else "triton"
    return run


def tuned(settings: Mapping[str, object]) -> Callable:
    """An executor of one configuration, its settings by name."""
    from ..lowering.gluon.launch import GluonLauncher
    from ..lowering.hopper.kernel_form import bind
    from ..lowering.launch.triton_config import Config
    from ..lowering.schedule.choose_config import sparing
    from ..lowering.schedule.kernel_time import Configuration, layout
    from ..lowering.triton.launch import Launcher
    from ..tune.kernel_space import is_tried

    def prepare(found, tensors, call) -> Callable:
        try:
            c = Configuration(**settings)
        except TypeError as error:
            raise NotTuned(f"kept by another version: {error}") from error
        if not is_tried(settings):
            raise NotTuned("a setting has a value that is not tried")
        if c.persistent:
            schedules = {k.name: sparing(bind(k), layout(c)) for k in found.plan.kernels}
            made = GluonLauncher(found.plan, schedules=schedules)
        else:
            made = Launcher(found.plan, Config(c.rows, c.columns, c.warps, c.stages))
        run = _bound(made, found, tensors, call)
        if refused := getattr(made, "refusals", None):
            raise NotTuned("; ".join(refused.values()))
        run.who = f"{'gluon' if c.persistent else 'triton'}, tuned"
        return run

    return prepare


def _bound(launcher, found, tensors, call) -> Callable:
    """The launcher writes into tensors that have the original's strides already; some that it reads are copied."""
    from ..lowering.launch.relayout import copies_of, relaid

    copies = copies_of(found.plan, found.names, tensors, call.sizes)
    if copies:
        run = _bound_as_they_are(launcher, found, relaid(tensors, copies), call)
        for copy in copies:
            records.note(found.key, f"{found.names[copy.place]} is copied to be read in runs: {copy}")
        return lambda given: run(relaid(given, copies))
    return _bound_as_they_are(launcher, found, tensors, call)


def _bound_as_they_are(launcher, found, tensors, call) -> Callable:
    outputs = [output.name for output in found.plan.outputs]
    if len(set(outputs)) < len(outputs):  # one stored tensor is two results
        run = launcher.bind(found.names, tensors, call.sizes)
        return lambda given: laid_out(run(given), given, call)
    wanted = {name: strides for name, (_, _, strides) in zip(outputs, call.results) if strides is not None}
    return launcher.bind(found.names, tensors, call.sizes, wanted)


def original(found, tensors, call) -> Callable:
    """The region's own calls, as the user wrote them."""
    run = found.program.bound({**found.program.sizes_of(tensors), **call.sizes}, tensors[0].device)
    return lambda given: laid_out(run(given), given, call)


EXECUTORS: dict[str, Callable] = {"tiled": tiled, "triton": triton, "gluon": gluon, ORIGINAL: original}


def laid_out(results: Sequence[torch.Tensor], given: Sequence[torch.Tensor], call) -> list[torch.Tensor]:
    """The results with the original's strides, and none an alias of an input or of another result."""
    taken = {t.untyped_storage().data_ptr() for t in given}
    return [_laid_out(result, kind[2], taken) for result, kind in zip(results, call.results, strict=True)]


def _laid_out(result: torch.Tensor, strides: tuple[int, ...] | None, taken: set[int]) -> torch.Tensor:
    strides = result.contiguous().stride() if strides is None else strides
    storage = result.untyped_storage().data_ptr()
    if result.stride() != strides or storage in taken:
        return result.new_empty_strided(result.shape, strides).copy_(result)
    taken.add(storage)
    return result

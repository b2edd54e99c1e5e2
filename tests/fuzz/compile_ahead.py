"""Compiles the kernels of random programs for a GPU that is not here: `python -m tests.fuzz --large --device sm_90`.

The plans are those that the backend makes; nothing is run but the tiled executor. What counts as failed: a kernel that
does not compile, or not in a minute, needs more shared memory than there is, or that ptxas gets wrong. What classes the
tiles of a block map is a kernel too.
"""

from __future__ import annotations

import time

import torch

from onepass.api.backend import onepass_backend
from onepass.lowering.launch.triton_compat import TYPE_NAMES, compile_ahead, mixes_addresses
from onepass.lowering.plan.device import DEVICES
from onepass.lowering.plan.records import NotPlannable
from onepass.lowering.triton.launch import Launcher, _classifier, default_for
from onepass.runtime import executors
from tests.fuzz.programs import Fuzzed

SLOW = 60  # seconds of a compilation
SMALLER = ("ptxas mixes up two matrices", "too much shared memory")  # what another configuration may not have


def plans_of(program: Fuzzed) -> list[tuple]:
    """(region, its tensors, the kind of call) for every region of the program that is fused."""
    seen: list[tuple] = []
    tiled = executors.EXECUTORS["tiled"]

    def noting(found, tensors, call):
        seen.append((found, tensors, call))
        return tiled(found, tensors, call)

    executors.EXECUTORS["tiled"] = noting
    try:
        torch._dynamo.reset()
        options = {"inner": "eager", "executor": "tiled", "libraries": False}
        torch.compile(program.function(), backend=onepass_backend, options=options)(*program.tensors())
    finally:
        executors.EXECUTORS["tiled"] = tiled
    return seen


class _Ahead(Launcher):
    """A launcher that compiles for a target where another prepares launches for a device."""

    def __init__(self, plan, target: str):
        super().__init__(plan, {kernel.name: default_for(kernel, target) for kernel in plan.kernels})
        self.target, self.wrong = target, []

    def _prepare(self, kernel, values, sizes, device):
        given = self.config(kernel, sizes, device)
        for config in (given, *given.smaller()):
            launch = self._launch(kernel, config, values, sizes, device)
            reason = _failure(launch, values, self.target)
            if reason not in SMALLER:
                break
        self.wrong += [f"{kernel.name}: {reason}"] if reason else []
        for _, tiling in launch.maps:
            self.wrong += self._classing(tiling, values)
        return launch

    def _classing(self, tiling, values: dict) -> list[str]:
        """What is wrong with the kernels that class the tiles of a map."""
        found = []
        for one in filter(None, (tiling, tiling.by_rows() if tiling.record.finite_mask else None)):
            classifier, sizes = _classifier(one)
            ahead = _Ahead(classifier.plan, self.target)
            ahead.configs = classifier.configs
            ahead.bind(ahead.names, [values[name] for name in ahead.names], sizes)
            found += ahead.wrong
        return found


def failures(program: Fuzzed, target: str) -> list[str]:
    """What is wrong with each kernel of the program that does not do."""
    found = []
    for region, tensors, call in plans_of(program):
        launcher = _Ahead(region.plan, target)
        try:
            launcher.bind(region.names, tensors, call.sizes)
        except NotPlannable:  # the tiled executor runs it
            continue
        found += launcher.wrong
    return found


def _failure(launch, values: dict, target: str) -> str:
    """Why what a launch runs does not do, compiled as for these values; "" if it does."""
    types, constants, divisible = {}, {}, []
    tensors = {parameter: values.get(tensor) for parameter, tensor in zip(launch.function.params, launch.tensors)}
    numbers = dict(zip(launch.function.params[len(tensors) :], launch.integers))
    for parameter, tensor in tensors.items():
        dtype = "int32" if tensor is None else str(tensor.dtype).removeprefix("torch.")  # a block map comes later
        types[parameter.name] = "*" + TYPE_NAMES[dtype]
        divisible.append(parameter.name)
    for parameter, number in numbers.items():
        types[parameter.name] = "i32"
        if number == 1 and not parameter.do_not_specialize:
            constants[parameter.name] = 1
        elif number % 16 == 0 and not parameter.do_not_specialize:
            divisible.append(parameter.name)
    tiles = {name: launch.options[name] for name in launch.function.arg_names if name in launch.options}
    options = {name: value for name, value in launch.options.items() if name not in tiles}
    begun = time.monotonic()
    try:
        compiled = compile_ahead(launch.function, types, constants | tiles, tuple(divisible), target, options)
    except Exception as error:
        return f"{type(error).__name__}: {' '.join(str(error).split())[-160:]}"
    if time.monotonic() - begun > SLOW:
        return f"took {time.monotonic() - begun:.0f} s to compile"
    if mixes_addresses(compiled.asm.get("ptx", "")):
        return SMALLER[0]
    return SMALLER[1] if compiled.metadata.shared > DEVICES[target].shared_bytes else ""

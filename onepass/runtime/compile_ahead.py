"""Starts to compile the kernels of a graph's regions, before Inductor compiles what is around them.

A first call then waits for the longer of the two, not for both; and a first backward finds its kernels ready. Nothing
depends on it: a call whose tensors are otherwise compiles what it needs. Only tensors on a GPU, of known sizes.
Example: the kernels of attention in a training graph are compiled by two threads, forward and backward.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import torch
from torch import fx

from ..graph.nodes import value_of_node
from ..lowering.executors import load_triton
from ..training.plans import Training, training
from .background import COMPILES, START
from .operator import runner
from .region_call import call_of, fake_results
from .runner import Runner
from .training_operator import backward_runner, forward_runner

Work = tuple[str, Callable[[], None]]  # the key of a region, and what compiles its kernels
DEVICE = "cuda"
log = logging.getLogger(__name__)


class KnownCall(NamedTuple):
    """A region's call in a graph: tensors without memory, sizes that none of them states, and the tensors' device."""

    text: str
    tensors: list[torch.Tensor]
    sizes: list[int]
    device: torch.device


def start_compiler() -> None:
    """Starts a thread that loads Triton's compiler, where a GPU is used: while Dynamo looks at the first program."""
    if torch.cuda.is_initialized():
        COMPILES.start(START, load_triton)


def compile_ahead(gm: fx.GraphModule) -> None:
    """Starts threads for the regions that a graph calls, and returns. It never raises."""
    try:
        calls = [call for module in gm.modules() if isinstance(module, fx.GraphModule) for call in _calls(module.graph)]
        for work in [*map(_forward, calls), *map(_backward, calls)]:
            if work is not None:
                COMPILES.start(*work)
    except Exception as error:
        log.debug("onepass: no kernel is compiled ahead: %s: %s", type(error).__name__, error)


def _calls(graph: fx.Graph) -> Iterator[KnownCall]:
    """The calls of regions whose tensors are on one GPU and whose sizes are all known."""
    for node in graph.find_nodes(op="call_function", target=torch.ops.onepass.region.default):
        tensors, text, sizes = (*node.args, ())[:3]
        values = [value_of_node(n) for n in tensors]
        numbers = [value_of_node(n) if isinstance(n, fx.Node) else n for n in sizes]
        devices = {x.device for x in values}
        known = all(isinstance(n, int) for n in (*numbers, *(n for x in values for n in (*x.shape, *x.stride()))))
        if known and len(devices) == 1 and {device.type for device in devices} == {DEVICE}:
            yield KnownCall(text, [_without_memory(x) for x in values], numbers, devices.pop())


def _without_memory(like: torch.Tensor) -> torch.Tensor:
    found = torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device="meta")
    return found.requires_grad_(like.requires_grad and torch.is_grad_enabled())


def _forward(call: KnownCall) -> Work | None:
    found = _trained(call)
    if found is None:
        forward = runner(call.text)
    else:
        forward = forward_runner(call.text, found.needed)
    if not isinstance(forward, Runner):
        return None
    return forward.found.key, partial(forward.compile_ahead, call.tensors, call.sizes, call.device)


def _backward(call: KnownCall) -> Work | None:
    """For all gradients that are needed, with cotangents that lie as the results do."""
    found = _trained(call)
    if found is None:
        return None
    made = found.every
    kinds = call_of(found.forward, call.tensors, call.sizes)
    outputs = fake_results(found.forward.program.output_metas, kinds, call.tensors)
    cotangents = [result for result, is_given in zip(outputs, made.given) if is_given]
    tensors = [*call.tensors, *(outputs[k] for k in made.kept), *cotangents]
    backward = backward_runner(call.text, found, found.needed, made)
    return made.region.key, partial(backward.compile_ahead, tensors, call.sizes, call.device)


def _trained(call: KnownCall) -> Training | None:
    """The plans in training; None where no gradient is needed, or none is derived."""
    needed = [x.requires_grad for x in call.tensors]
    found = training(call.text, needed) if any(needed) else None
    return found if isinstance(found, Training) else None

"""The launches of a plan as data: each text with the values of its parameters, for whoever checks what a text computes.

Nothing is launched but what makes block maps. Example: `launch_texts(Launcher(plan), {"q": q, "k": k}, {})` gives for
each kernel of the plan its launches, those of its parts, and those that add up slots.
"""

from __future__ import annotations

from pathlib import Path

import torch

from ..plan.kernel_texts import KernelTexts, LaunchText, Written
from . import slot_sums
from .diagonal_sums import slots_name
from .launch import Launcher, PreparedLaunches
from .slot_sums import SlotSum


def launch_texts(
    launcher: Launcher,
    tensors: dict[str, torch.Tensor],
    sizes: dict[str, int],
    strides: dict[str, tuple[int, ...]] | None = None,
) -> list[KernelTexts]:
    """The launches for tensors like these, by kernel of the plan, in order. strides: of outputs."""
    return launcher.by_best_form(lambda form: _texts_of(form, tensors, sizes, strides or {}))


def _texts_of(launcher: Launcher, tensors: dict[str, torch.Tensor], sizes: dict, strides: dict) -> list[KernelTexts]:
    ready = launcher.prepared(tensors, sizes, strides)
    found: dict[str, list[int]] = {}
    for number, kernel in enumerate(ready.kernels):
        found.setdefault(launcher.whole(kernel).name, []).append(number)
    return [_texts(launcher, ready, numbers) for numbers in found.values()]


def _texts(launcher: Launcher, ready: PreparedLaunches, numbers: list[int]) -> KernelTexts:
    calls: list[LaunchText] = []
    made: list[Written] = []
    inputs: dict[str, torch.Tensor] = {}
    for number in numbers:
        kernel, launch = ready.kernels[number], ready.launches[number]
        read = [t.name for t in kernel.inputs if not ready.seen[t.name].is_meta]
        inputs |= {name: ready.seen[name] for name in read} | launcher.mapped(launch, ready.seen) | launch.own_tensors
        names = dict.fromkeys(store.output.name for store in kernel.stores)
        made += [_written(ready, name, name in kernel.zeroed) for name in names]
        made += [_slots(each) for each in launch.sums]
        calls += [launch.as_text(ready.seen), *(_slot_call(each) for each in launch.sums)]
    own = launcher.whole(ready.kernels[numbers[0]])
    finish = next((k for n in numbers if (k := ready.kernels[n]) in launcher.plan.kernels and k != own), None)
    return KernelTexts(own, tuple(calls), tuple(made), ready.sizes, inputs, finish)


def _written(ready: PreparedLaunches, name: str, zero: bool) -> Written:
    like = ready.seen[name]
    return name, str(like.dtype).removeprefix("torch."), tuple(like.shape), like.stride(), zero


def _slots(each: SlotSum) -> Written:
    like = each.made(torch.device("meta"))
    return slots_name(each.store), str(each.dtype).removeprefix("torch."), tuple(like.shape), like.stride(), True


def _slot_call(each: SlotSum) -> LaunchText:
    """The launch that adds up the slots of a store; its text is that of slot_sums.py."""
    text = Path(slot_sums.__file__).read_text(encoding="utf-8")
    programs, integers, constants = each.call()
    pointers = {"slots": slots_name(each.store), "sums": each.store.output.name}
    return LaunchText(text, "add_slots", programs, pointers, integers, constants)

"""What runs for a kernel as data: texts with the values of their parameters, for whoever checks what they compute.

Example: of a kernel whose loops are split over programs there are two launches, and what the first one writes is made.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import torch

from ...egraph.terms.term import Tensor
from .records import Kernel, Store

Extents = tuple[int, ...]
CopyMap = tuple[str, Extents, Extents, Extents, int]  # tensor, shape, strides, box, bytes of an element
Written = tuple[str, str, tuple[int, ...], tuple[int, ...], bool]  # name, dtype, shape, strides, starts as zeros


@dataclass(frozen=True)
class LaunchText:
    """One launch: which tensor each pointer is, the integers of the call, and the constants of the text.

    maps: tensor maps by parameter. libraries: texts of the functions that the text imports.
    """

    text: str
    function: str
    programs: int
    pointers: Mapping[str, str]
    integers: Mapping[str, int]
    constants: Mapping[str, int]
    maps: Mapping[str, CopyMap] = field(default_factory=dict)
    libraries: tuple[str, ...] = ()


@dataclass(frozen=True)
class KernelTexts:
    """What runs for one kernel of a plan. made: what its launches write. inputs: the plan's tensors that it reads, and
    tables of tiles. finish: the kernel that makes results of what this one adds up, and runs with it."""

    kernel: Kernel
    calls: tuple[LaunchText, ...]
    made: tuple[Written, ...]
    sizes: Mapping[str, int]
    inputs: Mapping[str, torch.Tensor] = field(default_factory=dict)
    finish: Kernel | None = None

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """The kernels of the plan that run."""
        return (self.kernel,) if self.finish is None else (self.kernel, self.finish)

    @property
    def stores(self) -> tuple[Store, ...]:
        """All that they store."""
        return tuple(store for kernel in self.kernels for store in kernel.stores)

    @property
    def reads(self) -> tuple[Tensor, ...]:
        """The tensors of the plan that they read."""
        return tuple(dict.fromkeys(tensor for kernel in self.kernels for tensor in kernel.inputs))


def imported(text: str) -> tuple[str, ...]:
    """The texts of the modules of lowering that a kernel's text imports."""
    return tuple(map(_module, re.findall(r"^from onepass\.lowering\.(\S+) import", text, re.MULTILINE)))


@cache
def _module(name: str) -> str:
    return Path(__file__).parents[1].joinpath(*name.split(".")).with_suffix(".py").read_text(encoding="utf-8")

"""What runs for a kernel as data: texts with the values of their parameters, for whoever checks what they compute.

Example: of a kernel whose loops are split over programs there are two launches, and what the first one writes is made.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from .records import Kernel

Written = tuple[str, str, tuple[int, ...], tuple[int, ...], bool]  # name, dtype, shape, strides, starts as zeros


@dataclass(frozen=True)
class LaunchText:
    """One launch: which tensor each pointer is, the integers of the call, and the constants of the text."""

    text: str
    function: str
    programs: int
    pointers: Mapping[str, str]
    integers: Mapping[str, int]
    constants: Mapping[str, int]


@dataclass(frozen=True)
class KernelTexts:
    """What runs for one kernel of a plan. made: what its launches write. inputs: the plan's tensors that it reads, and
    tables of tiles."""

    kernel: Kernel
    calls: tuple[LaunchText, ...]
    made: tuple[Written, ...]
    sizes: Mapping[str, int]
    inputs: Mapping[str, torch.Tensor] = field(default_factory=dict)

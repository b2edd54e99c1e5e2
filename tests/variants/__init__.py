"""Attention variants as records: plain PyTorch, inputs at a small shape, and what onepass is expected to make of it.

Every family is a module with a list VARIANTS. Read by test_variants.py, by benchmarks and by the gallery; nothing here
imports onepass.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Variant:
    """One variant. `inputs()` gives tensors for `function` and for each of its `spellings`, which mean the same.

    kernels, passes: expected of every spelling. outside: reductions, products and concatenations that stay outside of
    the kernels today. refused: words of the reason for which all of it is left as written today.
    """

    name: str
    function: Callable
    inputs: Callable[[], list[torch.Tensor]]
    kernels: int = 1
    passes: int = 1
    spellings: tuple[Callable, ...] = ()
    outside: tuple[str, ...] = ()
    refused: str = ""

    @property
    def source(self) -> str:
        """The PyTorch lines of the function."""
        return inspect.getsource(self.function)

    @property
    def functions(self) -> tuple[Callable, ...]:
        """The function and its spellings."""
        return (self.function, *self.spellings)


def heads(*counts: int, batch: int = 1, rows: int = 300, columns: int = 300, width: int = 16, values: int = 16):
    """q, k, v of shape (batch, heads, length, width); one number of heads for all, or three."""
    q, k, v = counts * 3 if len(counts) == 1 else counts
    shapes = (q, rows, width), (k, columns, width), (v, columns, values)
    return [torch.randn(batch, *shape) for shape in shapes]


def every() -> list[Variant]:
    """The variants of all families."""
    names = sorted(module.name for module in pkgutil.iter_modules(__path__))
    modules = [importlib.import_module(f"{__name__}.{name}") for name in names]
    return [v for module in modules for v in module.VARIANTS]

"""`compile`: a function or a module, compiled by torch.compile with onepass as its backend.

Example: `fast = onepass.compile(model, strict=True)`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..errors import InputError


def compile(
    function: Callable, *, dynamic: bool | None = None, fullgraph: bool = False, mode: str | None = None, **options: Any
) -> Callable:
    """The compiled function or module, as torch.compile(function, backend="onepass", ...) gives it.

    dynamic, fullgraph, mode: those of torch.compile. options: those of the backend, such as rules=[...] or strict=True.
    Raises OptionError, RuleRefuted and RuleUnproved at once, and InputError for a value that is no function.
    """
    import torch

    from .backend import onepass_backend

    if not callable(function):
        kind = type(function).__name__
        raise InputError(f"compile(function) takes a function or a module, and this is of type {kind}")
    backend = onepass_backend(options=options, mode=mode)
    return torch.compile(function, backend=backend, dynamic=dynamic, fullgraph=fullgraph)

"""`compile`: a function or a module, compiled by torch.compile with onepass as its backend.

Example: `fast = onepass.compile(model, strict=True)`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

from ..errors import InputError

Called = TypeVar("Called", bound=Callable)
ISOLATED = {"isolate_recompiles": True}  # torch 2.11 lacks it, and recompile_limit: its limit is 8
MAX_GRAPHS_TOGETHER = 256  # of one function there: Dynamo's own limit for a piece of code


def isolated(most: int) -> dict[str, Any]:
    """Arguments of torch.compile for a function that gets graphs of its own, at most so many."""
    import torch

    known = inspect.signature(torch.compile).parameters
    return {name: value for name, value in {"recompile_limit": most, **ISOLATED}.items() if name in known}


def with_room(limits: Mapping[str, Any]) -> AbstractContextManager:
    """Where `isolated` gave nothing, all graphs of a function count together: more than 8 are let in."""
    from torch._dynamo import config

    return nullcontext() if ISOLATED.keys() <= limits.keys() else config.patch(recompile_limit=MAX_GRAPHS_TOGETHER)


def compile(
    function: Called, *, dynamic: bool | None = None, fullgraph: bool = False, mode: str | None = None, **options: Any
) -> Called:
    """The compiled function or module, as torch.compile(function, backend="onepass", ...) gives it.

    dynamic, fullgraph, mode: those of torch.compile. options: those of the backend, such as rules=[...] or strict=True.
    Raises OptionError, RuleRefuted and RuleUnproved at once, and InputError for a value that is no function.

    >>> import onepass, torch
    >>> def attend(q, k, v):
    ...     return torch.softmax(q @ k.mT / 8, -1) @ v
    >>> q, k, v = (torch.randn(2, 4, 32, 64) for _ in range(3))
    >>> fast = onepass.compile(attend, inner="eager", require="all")
    >>> torch.allclose(fast(q, k, v), attend(q, k, v), atol=1e-5)
    True
    """
    import torch

    from .backend import onepass_backend

    if not callable(function):
        kind = type(function).__name__
        raise InputError(f"compile(function) takes a function or a module, and this is of type {kind}")
    backend = onepass_backend(options=options, mode=mode)
    return torch.compile(function, backend=backend, dynamic=dynamic, fullgraph=fullgraph)

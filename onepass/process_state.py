"""The state of this process: every dict, list or set at module level to which functions of onepass/ write.

Each is registered here under its kind, so that one `forget` empties them all, as if a new process had started. The disk
cache keeps its entries. Example: `_RUNNERS = registered({}, "runners")`; `forget("runners")` empties it alone.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar

KINDS = (
    "reports",  # of graphs and of regions
    "regions",  # with their plans
    "runners",  # of regions: which executors are left, and which calls are ready
    "verdicts",  # on rules
)
Container = TypeVar("Container", bound=dict | list | set)
Key = TypeVar("Key")
Value = TypeVar("Value")


@dataclass(frozen=True)
class ProcessStore:
    """A registered container. A function holds `lock` while it writes."""

    values: Any
    kind: str
    lock: AbstractContextManager


_STORES: list[ProcessStore] = []


def registered(values: Container, kind: str, lock: AbstractContextManager | None = None) -> Container:
    """The container itself, which `forget` empties from now on.

    lock: what functions hold while they write; it can be entered again and again. Raises ValueError for a kind that is
    not in KINDS.
    """
    _require_known(kind)
    _STORES.append(ProcessStore(values, kind, lock or nullcontext()))
    return values


def keep_latest(values: OrderedDict[Key, Value], key: Key, value: Value, most: int) -> Value:
    """Adds the value, which it returns; of more than `most` values the oldest ones are dropped."""
    values[key] = value
    while len(values) > most:
        values.popitem(last=False)
    return value


def stores() -> Iterator[ProcessStore]:
    """Every registered store of the modules that are imported."""
    return iter(tuple(_STORES))


def forget(*kinds: str) -> None:
    """Empties the stores of these kinds, or every store if no kind is given. Raises ValueError for an unknown kind."""
    for kind in kinds:
        _require_known(kind)
    for store in stores():
        if not kinds or store.kind in kinds:
            with store.lock:
                store.values.clear()


def _require_known(kind: str) -> None:
    if kind not in KINDS:
        raise ValueError(f"{kind!r} is no kind of state; the kinds are {', '.join(KINDS)}")

"""Seconds of the stages of a first call: what a compilation spends on capture, search, plan, kernels and their checks.

Each second is in one stage: a stage that runs inside another one is not counted in that one too, so the stages of a
call add up to the call. They go to the account of whoever began: a graph, or a region that runs for the first time.
Where nobody did, nothing is counted. Example: `with stage("rewriting", seconds): with stage("search"): ...` gives
seconds = {"search": 0.2, "rewriting": 0.1} for a call of 0.3 s.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

Seconds = dict[str, float]  # by the name of a stage


@dataclass
class _Stage:
    """A stage that runs: whose seconds it adds to, and the seconds of the stages inside."""

    account: Seconds
    inside: float = 0.0


_INNERMOST: ContextVar[_Stage | None] = ContextVar("INNERMOST", default=None)  # a thread begins without one


@contextmanager
def stage(name: str, account: Seconds | None = None) -> Iterator[None]:
    """Counts the seconds within, as a block or as a decorator. account: where they go, if not to the outer stage's."""
    outer = _INNERMOST.get()
    if account is None:
        if outer is None:
            yield
            return
        account = outer.account
    known = _Stage(account)
    before, began = _INNERMOST.set(known), time.perf_counter()
    try:
        yield
    finally:
        took = time.perf_counter() - began
        _INNERMOST.reset(before)
        account[name] = account.get(name, 0.0) + took - known.inside
        if outer is not None:
            outer.inside += took


def added(accounts: Iterable[Seconds]) -> Seconds:
    """The seconds of several accounts together."""
    total: Seconds = {}
    for account in accounts:
        for name, took in account.items():
            total[name] = total.get(name, 0.0) + took
    return total


def shown(seconds: Seconds) -> str:
    """The stages with their seconds, the longest first; those of less than a millisecond are left out."""
    longest = sorted(seconds.items(), key=lambda pair: -pair[1])
    return ", ".join(f"{name} {took:.3f} s" for name, took in longest if took >= 1e-3)

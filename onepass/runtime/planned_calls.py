"""Whether the call that this thread runs is of a serving plan: one that prepares, or one of what is prepared.

While a plan prepares, what is compiled, compared, timed or left to the original calls is noted for it. Once the plan is
sealed, the same raises NotPrepared. Outside of plans nothing changes. Example: a runner that meets a new kind of call
says `prepares("a region")` first.
"""

from __future__ import annotations

from threading import local

from ..errors import NotPrepared


class PlannedCalls:
    """What the calls of one plan met: how often something was prepared, and why original calls ran."""

    def __init__(self) -> None:
        self.sealed = False
        self.prepared = 0
        self.fallbacks: list[str] = []


class _Calling(local):
    planned: PlannedCalls | None = None


CALLING = _Calling()  # `planned`: of the plan whose call this thread runs


def prepares(what: str) -> None:
    """Notes that something is compiled, compared or timed. Raises NotPrepared in a call of a sealed plan."""
    planned = CALLING.planned
    if planned is None:
        return
    if planned.sealed:
        raise NotPrepared(f"{what} would be compiled, compared or timed, and this plan's calls do none of it")
    planned.prepared += 1


def falls_back(reason: str) -> None:
    """Notes that original calls run for this reason. Raises NotPrepared in a call of a sealed plan."""
    planned = CALLING.planned
    if planned is None:
        return
    if planned.sealed:
        raise NotPrepared(f"the original calls would run: {reason}")
    planned.fallbacks.append(reason)


def is_sealed() -> bool:
    """Whether this thread runs a call of a sealed plan."""
    return CALLING.planned is not None and CALLING.planned.sealed

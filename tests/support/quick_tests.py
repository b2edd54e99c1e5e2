"""Which tests --quick leaves out: those marked `slow`, and most cases of those marked `sampled(n)`.

Which n cases are run depends on their names alone, so two runs compare, and a new case displaces one at most.
"""

from collections.abc import Iterable, Sequence
from hashlib import sha256


def left_out(items: Iterable) -> list:
    """The collected tests that a quick run leaves out."""
    items = list(items)
    sampled: dict[str, list[str]] = {}
    for item in items:
        sampled.setdefault(function_of(item.nodeid), []).append(item.nodeid)
    return [item for item in items if item.get_closest_marker("slow") or _is_outside(item, sampled)]


def _is_outside(item, cases: dict[str, list[str]]) -> bool:
    marker = item.get_closest_marker("sampled")
    return marker is not None and item.nodeid not in sample(cases[function_of(item.nodeid)], *marker.args)


def function_of(nodeid: str) -> str:
    """The test function of a case: its name without parameters."""
    return nodeid.partition("[")[0]


def sample(cases: Sequence[str], count: int) -> list[str]:
    """So many of the cases, or all."""
    return sorted(cases, key=lambda name: sha256(name.encode()).digest())[:count]

"""Which tests --quick leaves out: those marked `slow`, and most cases of those marked `sampled(n)`.

Which n cases are run depends on their names alone, so two runs compare, and a new case displaces one at most.
"""

from collections.abc import Iterable, Sequence
from hashlib import sha256


def left_out(items: Iterable) -> list:
    """The collected tests that a quick run leaves out."""
    functions: dict[str, list] = {}
    for item in items:
        functions.setdefault(function_of(item.nodeid), []).append(item)
    return [item for cases in functions.values() for item in _left_out(cases)]


def _left_out(cases: Sequence) -> list:
    """Those of one function's cases."""
    marker = cases[0].get_closest_marker("sampled")
    names = [case.nodeid for case in cases]
    kept = {*(names if marker is None else sample(names, *marker.args))}
    return [case for case in cases if case.nodeid not in kept or case.get_closest_marker("slow")]


def function_of(nodeid: str) -> str:
    """The test function of a case: its name without parameters."""
    return nodeid.partition("[")[0]


def sample(cases: Sequence[str], count: int) -> list[str]:
    """So many of the cases, or all."""
    return sorted(cases, key=lambda name: sha256(name.encode()).digest())[:count]

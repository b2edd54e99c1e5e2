"""The versions that onepass was tested with, and one warning for others, which are used all the same.

A newer version may work as it is, so nothing refuses it. Invariant: a warning names a package at most once a process.
Example: under torch 2.16, "torch 2.16.0 is newer than what was tested (2.11 to 2.15)".
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping
from importlib import metadata

from .process_state import registered

TESTED = {  # package: the first and the last release of the tests
    "torch": ((2, 11), (2, 15)),
    "triton": ((3, 6), (3, 9)),
}
_WARNED: set[str] = registered(set(), "reports")
log = logging.getLogger(__name__)


def summary() -> str:
    """The tested versions in one line: "torch 2.11 to 2.15, triton 3.6 to 3.9, ..."."""
    return ", ".join(f"{name} {_span(name)}" for name in TESTED)


def untested(versions: Mapping[str, str] | None = None) -> Iterator[tuple[str, str]]:
    """Packages whose version here was not tested, each with a sentence.

    versions: by package; those of this process if None is given. A package that is not installed is left out.
    """
    for name, version in (_installed() if versions is None else versions).items():
        found = re.match(r"(\d+)\.(\d+)", version)
        release = (int(found[1]), int(found[2])) if found else None
        first, last = TESTED[name]
        if release is None or not first <= release <= last:
            age = "is unknown beside" if release is None else "is older than" if release < first else "is newer than"
            yield name, f"{name} {version} {age} what was tested ({_span(name)})"


def warn_of_untested() -> None:
    """Warns, once for a package in a process, of versions that were not tested."""
    for name, sentence in untested():
        if name not in _WARNED:
            _WARNED.add(name)
            log.warning("onepass: %s. It is used all the same; `python -m onepass doctor` says more", sentence)


def _installed() -> dict[str, str]:
    found = {}
    for name in TESTED:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _span(name: str) -> str:
    first, last = (".".join(map(str, release)) for release in TESTED[name])
    return f"{first} to {last}"

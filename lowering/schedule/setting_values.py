"""The values that a search tries for each setting of a kernel's launch.

Values of a schedule's settings come from its own record: a new setting is declared there, and it is here.
Example: `is_tried({"rows": 1 << 40})` is false, so such settings from a file are refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields

from ..hopper.config import KNOBS, Schedule

SEARCHED = {f.name: f.metadata["values"] for f in fields(Schedule) if f.metadata}
KNOWN = {name: SEARCHED[name] for name in ("queries", *KNOBS) if name in SEARCHED}
PLAIN = {"rows": (64, 128, 256), "columns": (32, 64, 128), "warps": (4, 8), "stages": (1, 2, 3, 4)}
NAMES = ("executor", *PLAIN, *KNOWN)
GROUPS = sorted(SEARCHED["consumers"])
SCHEDULED = {
    "rows": tuple(64 * n for n in GROUPS), "columns": SEARCHED["tile"], "warps": tuple(4 * n for n in GROUPS),
    "stages": SEARCHED["depth"],
}  # fmt: skip
SETTINGS = {"executor": ("ptr", "gluon"), **{name: (*PLAIN[name], *SCHEDULED[name]) for name in PLAIN}, **KNOWN}


def is_tried(settings: Mapping[str, object]) -> bool:
    """Whether each setting has a value that a search tries."""
    return all(name in SETTINGS and value in SETTINGS[name] for name, value in settings.items())

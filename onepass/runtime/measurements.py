"""What was measured of a region and is kept in its entry: who was compared, which rival was faster, tuned settings.

None of it can be derived again, so it is believed as far as the entry's signature goes. It decides who runs a plan that
is checked, never what is computed: a kernel of that plan, a rival that the code knows, a setting that the tuner tries.
Without a cache on disk, the process keeps it: else each graph would ask who is faster, and none would hear the answer.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass

from ..compiler import disk_cache
from ..process_state import registered

_HERE: dict[str, dict[str, object]] = registered({}, "runners")  # by region, what no entry on disk holds


@dataclass(frozen=True)
class Measured:
    """validated: who was compared, at which kinds of calls. choices: by class of sizes, the rival that runs ("" for the
    plan) and its part of the plan's time. tuned: by class of sizes, settings by name.
    """

    validated: set[str]
    choices: dict[str, tuple[str, float]]
    tuned: dict[str, dict]

    @classmethod
    def read(cls, key: str) -> Measured:
        """Of a region's entry; nothing of what is not as it is written."""
        body = _HERE.get(key, {}) | (disk_cache.read(key) or {})
        kinds = body.get("validated")
        validated = {kind for kind in kinds if isinstance(kind, str)} if isinstance(kinds, list) else set()
        choices = {size: (name, part) for size, (name, part) in _whole(body.get("choices"), _is_choice)}
        return cls(validated, choices, dict(_whole(body.get("tuned"), _is_setting)))


def keep(key: str, **changes: object) -> None:
    """Keeps fields of `Measured` for a region: in its entry, or in this process where there is none."""
    if not disk_cache.update(key, **changes):
        _HERE[key] = _HERE.get(key, {}) | {name: copy(value) for name, value in changes.items()}  # as others read it


def _whole(data, is_one) -> list[tuple]:
    return [(k, v) for k, v in data.items() if is_one(v)] if isinstance(data, dict) else []


def _is_choice(value) -> bool:
    match value:
        case [str(), int() | float()]:
            return True
    return False


def _is_setting(value) -> bool:
    plain = (str, int, float, type(None))
    return isinstance(value, dict) and all(isinstance(v, plain) for v in value.values())

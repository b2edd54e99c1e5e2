"""The folder that ONEPASS_CACHE names: for kept results, and for copies of kernels' texts.

Empty is as if it were not set; "off" and its like say that nothing is kept. Used by triton_launch.py and cache.py.
"""

from __future__ import annotations

import os
from pathlib import Path

OFF = ("0", "off", "no", "none")


def _said() -> str:
    return os.environ.get("ONEPASS_CACHE", "").strip()


def keeps() -> bool:
    """Whether anything is to be kept."""
    return _said().lower() not in OFF


def named_folder() -> Path | None:
    """The folder, if one is named."""
    return Path(_said()).expanduser() if _said() and keeps() else None

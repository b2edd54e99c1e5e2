"""With ONEPASS_REPORT=DIR, the page of each compiled graph as a file of that folder, written when it is compiled.

A file's name has a number, the function's name and the process: several processes may share a folder. What cannot be
written is said once in a process, and never stops a program. Example: 001-attention-4711.html.
"""

from __future__ import annotations

import logging
import os
import re
from dataclasses import replace
from pathlib import Path

from ..process_state import registered
from .records import Report

VARIABLE = "ONEPASS_REPORT"
MAX_NAME = 60  # characters of the function's name
log = logging.getLogger(__name__)
_FILES: list[Path] = registered([], "reports")  # written by this process
_SAID: set[str] = registered(set(), "reports")  # errors


def write_page(report: Report, function: str) -> Path | None:
    """Writes the page of a graph of this function, where the variable asks for it; its path."""
    folder = os.environ.get(VARIABLE, "")
    if not folder:
        return None
    name = re.sub(r"[^\w.]+", "_", function).strip("_")[:MAX_NAME] or "graph"
    path = Path(folder) / f"{len(_FILES) + 1:03}-{name}-{os.getpid()}.html"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace(report, title=report.title or function).save(path)
    except Exception as error:  # of whatever kind: the program that is compiled goes on
        if not _SAID:
            log.warning("onepass: %s=%s: no page is written: %s", VARIABLE, folder, error)
        _SAID.add(str(error))
        return None
    _FILES.append(path)
    return path

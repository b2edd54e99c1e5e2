"""The command `cache list | size | clear`: what is kept on disk from one process to the next.

Entries of other versions are listed and removed, too: nothing reads them any more. What was removed is computed again
when it is needed. Example: `python -m onepass cache size`.
"""

from __future__ import annotations

import sys
import time
from argparse import Namespace

from ..compiler import disk_cache
from ..compiler.disk_cache import KeptFile

KINDS = (("status", "verdict"), ("names", "region"), ("as derived", "gradients"))  # a field of an entry: its kind


def run(chosen: Namespace) -> int:
    """Lists the entries, says their size, or removes them. Returns 1 if something could not be removed."""
    place = disk_cache.folder()
    if place is None:
        print("the cache is switched off (ONEPASS_CACHE=off)", file=sys.stderr)
        return 0
    if chosen.action == "list":
        for entry in disk_cache.entries():
            when = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.written))
            print(f"{entry.name}  {when}  {entry.bytes / 1e3:9.1f} kB  {_kind(entry)}")
        return 0
    entries, texts = disk_cache.entries(), disk_cache.texts()
    if chosen.action == "clear":
        removed = disk_cache.clear(), disk_cache.clear_texts()
        print(f"removed {removed[0]} entries and {removed[1]} kernel texts from {place}")
        return int(sum(removed) < len(entries) + len(texts))
    held = f"{len(entries)} entries, {_megabytes(entries)}; {len(texts)} kernel texts, {_megabytes(texts)}; in {place}"
    print(f"{held}; at most {disk_cache.limit() / 1e6:g} MB (ONEPASS_CACHE_MB)")
    return 0


def _megabytes(files: list[KeptFile]) -> str:
    return f"{sum(file.bytes for file in files) / 1e6:.1f} MB"


def _kind(entry: KeptFile) -> str:
    """What an entry is of, with what names it."""
    body = disk_cache.read(entry.name)
    if body is None:
        return "cannot be read, and is not used"
    kind = next((kind for field, kind in KINDS if field in body), "settings")
    return " of ".join([kind, ", ".join(map(str, body["names"]))]) if body.get("names") else kind

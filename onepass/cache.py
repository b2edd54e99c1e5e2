"""The disk cache: one small JSON file per key, data only, written beside and renamed into place.

Nothing here can fail a caller: a folder that cannot be written, a full disk or a damaged file is a logged miss. The
folder is $ONEPASS_CACHE, else onepass/ in the user's cache folder; $ONEPASS_CACHE=off keeps nothing.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import sys
import tempfile
from functools import cache
from pathlib import Path

from . import __version__
from .egraph.serial import digest
from .lowering.folder import keeps, named_folder

FORMAT = 1
log = logging.getLogger(__name__)


def folder() -> Path | None:
    """Where entries live, or None if the cache is switched off. Read at every use: tests and users change it."""
    if not keeps() or named_folder():
        return named_folder()
    base = os.environ.get("LOCALAPPDATA" if sys.platform == "win32" else "XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "onepass"


@cache
def versions() -> dict[str, str]:
    """The versions that an entry depends on."""
    from importlib.metadata import PackageNotFoundError, version

    import torch

    found = {"onepass": __version__, "torch": torch.__version__, "format": str(FORMAT)}
    for package in ("triton", "egglog"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "none"
    return {**found, "source": _source_digest()}


def _source_digest() -> str:
    """A name for onepass's own code, laws included: an edited checkout never meets what its older self stored."""
    from . import egraph, lowering, rules

    parts = [Path(__file__).parent, *(Path(part.__file__).parent for part in (egraph, lowering, rules))]
    sources = {f"{n} {file.name}": file for n, part in enumerate(parts) for file in part.glob("*.py")}
    return digest([[name, hashlib.sha256(sources[name].read_bytes()).hexdigest()] for name in sorted(sources)])


def capability(device) -> str:
    """The kind of machine that a plan is made for: "cpu", or the GPU's name and compute capability."""
    import torch

    device = torch.device(device)
    if device.type != "cuda":
        return device.type
    major, minor = torch.cuda.get_device_capability(device)
    return f"{torch.cuda.get_device_name(device)} sm_{major}{minor}"


def key(text: str, device) -> str:
    """The name of an entry: by the content of the program and its options, the versions and the device."""
    return digest([text, versions(), capability(device)])[:40]


def read(name: str) -> dict | None:
    """The entry, or None if there is none that can be trusted."""
    path = _path(name)
    if path is None:
        return None
    try:
        entry = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(entry, dict) or entry.get("key") != name or entry.get("format") != FORMAT:
            raise ValueError("not an entry of this cache")
        body = entry["body"]
        if not isinstance(body, dict) or digest(body) != entry["digest"]:
            raise ValueError("its content is damaged")
        return body
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, RecursionError) as error:
        log.warning("onepass: cache entry %s is left unread: %s", path, error)
        return None


def write(name: str, body: dict) -> bool:
    """Stores the entry whole or not at all; False if it could not be stored."""
    path = _path(name)
    if path is None:
        return False
    temporary = None
    try:
        text = json.dumps({"format": FORMAT, "key": name, "digest": digest(body), "body": body}, sort_keys=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".tmp")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(temporary, path)
        return True
    except (OSError, TypeError, ValueError) as error:
        log.warning("onepass: cache entry %s is not stored: %s", path, error)
        _unlink(temporary)
        return False


def update(name: str, **changes) -> bool:
    """Changes some fields of an entry, if it is there."""
    body = read(name)
    return body is not None and write(name, {**body, **changes})


def forget(name: str) -> None:
    """Removes one entry."""
    _unlink(_path(name))


def clear() -> int:
    """Removes every entry of this cache, nothing else; the number removed."""
    place = folder()
    entries = [] if place is None else list(place.glob("*/*.json"))
    for entry in entries:
        _unlink(entry)
    return len(entries)


def _path(name: str) -> Path | None:
    place = folder()
    return None if place is None else place / name[:2] / f"{name}.json"


def _unlink(path) -> None:
    try:
        if path is not None:
            os.unlink(path)
    except OSError:
        pass

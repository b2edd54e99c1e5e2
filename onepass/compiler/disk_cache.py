"""The disk cache: one small JSON file per key, data only, written beside and renamed into place.

Nothing here can fail a caller: a folder that cannot be written, a full disk or a damaged file is a logged miss. So is
an entry that was edited or planted: each is signed, name and content, by a key that only its user can read. Who can
read that key can sign; what is read is therefore checked again where a result depends on it (optimized.py). The folder
is $ONEPASS_CACHE, else onepass/ in the user's cache folder; $ONEPASS_CACHE=off keeps nothing.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import os
import re
import secrets
import stat
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from platformdirs import user_cache_path

from .. import __version__
from ..egraph.rewrite.serialization import digest
from ..lowering.source_folder import (
    UNUSABLE,
    is_own,
    keeps,
    make_own,
    make_private,
    named_folder,
    of_this_user,
    read_whole,
    say_unusable,
    write_whole,
)
from ..lowering.stage_times import stage
from ..process_state import registered

if TYPE_CHECKING:
    import torch

FORMAT = 3
MAX_BYTES_OF_AN_ENTRY = 1 << 26
DEFAULT_MEGABYTES = 500.0
KEPT_SHARE = 0.9  # of the limit, where it was passed: the next writes find room
WRITES_BETWEEN_LOOKS = 64
CODE = (".py", ".toml", ".json")  # code, and the tables that it reads
_UNUSABLE: set[Path] = registered(UNUSABLE, "reports")  # folders of which a line has said so
log = logging.getLogger(__name__)


def folder() -> Path | None:
    """Where entries live, or None if the cache is switched off. Read at every use: tests and users change it.

    In a folder of another user's there is one for each. Who may write there can remove an entry, and cannot make one.
    """
    if not keeps() or named_folder():
        return named_folder()
    with suppress(RuntimeError):  # a user without a home; older releases of platformdirs say "~/..." then
        usual = user_cache_path("onepass", appauthor=False)
        return of_this_user(usual) if usual.is_absolute() else None
    return None


def made_folder() -> Path | None:
    """The folder, made where it is missing. None if there is none, or none can be there, which is logged once."""
    place = folder()
    if place is None:
        return None
    try:
        return make_private(place)
    except OSError as error:
        say_unusable(place, error)
        return None


@cache
@stage("versions and digests of the source")
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
    from .. import egraph, lowering, rules

    return {**found, "source": code_digest(sys.modules[__package__.partition(".")[0]], egraph, lowering, rules)}


def code_digest(*packages: ModuleType) -> str:
    """A name for all that packages decide by: an edited checkout never meets what its older self stored."""
    found = []
    for package in packages:
        folder = Path(package.__file__).parent
        for file in sorted(folder.rglob("*")):
            if file.suffix in CODE and "__pycache__" not in file.parts and file.is_file():
                place = file.relative_to(folder).as_posix()
                found.append([package.__name__, place, hashlib.sha256(file.read_bytes()).hexdigest()])
    return digest(found)


def capability(device: str | torch.device) -> str:
    """The kind of machine that a plan is made for: "cpu", or the GPU's name and compute capability."""
    import torch

    device = torch.device(device)
    if device.type != "cuda":
        return device.type
    major, minor = torch.cuda.get_device_capability(device)
    return f"{torch.cuda.get_device_name(device)} sm_{major}{minor}"


def key(text: str, device: str | torch.device) -> str:
    """The name of an entry: by the content of the program and its options, the versions and the device."""
    return digest([text, versions(), capability(device)])[:40]


@stage("disk cache")
def read(name: str) -> dict | None:
    """The entry, or None if there is none that can be trusted."""
    place = folder()
    if place is None:
        return None
    path = _path(place, name)
    try:
        entry = json.loads(read_whole(path, MAX_BYTES_OF_AN_ENTRY)[0])
        if not isinstance(entry, dict) or entry.get("key") != name or entry.get("format") != FORMAT:
            raise ValueError("not an entry of this cache")
        body, key = entry["body"], _signing_key(place)
        if not isinstance(body, dict) or key is None:
            raise ValueError("it is not signed by this user" if key is None else "its content is damaged")
        if not hmac.compare_digest(_signature(key, name, body).encode(), str(entry["signature"]).encode()):
            raise ValueError("its content is not what this user signed")
        return body
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, KeyError, RecursionError) as error:
        log.warning("onepass: cache entry %s is left unread: %s", path, error)
        return None


@stage("disk cache")
def write(name: str, body: dict) -> bool:
    """Stores the entry whole or not at all; False if it could not be stored."""
    place = made_folder()
    if place is None:
        return False
    path = _path(place, name)
    try:
        make_own(path.parent)
        signature = _signature(_signing_key(place) or _new_signing_key(place), name, body)
        entry = {"format": FORMAT, "key": name, "signature": signature, "body": body}
        write_whole(path, json.dumps(entry, sort_keys=True))
        if int(name[:2], 16) % WRITES_BETWEEN_LOOKS == 0:  # names are digests: one in so many
            hold_to_limit()
        return True
    except OSError as error:
        say_unusable(place, error)
        return False
    except (TypeError, ValueError) as error:
        log.warning("onepass: cache entry %s is not stored: %s", path, error)
        return False


def update(name: str, **changes: object) -> bool:
    """Changes some fields of an entry, if it is there."""
    body = read(name)
    return body is not None and write(name, {**body, **changes})


def remove(name: str) -> None:
    """Removes one entry."""
    place = folder()
    if place is not None:
        _unlink(_path(place, name))


def clear() -> int:
    """Removes every entry of this cache, nothing else; the number removed."""
    return sum(_unlink(found.path) for found in entries())


def clear_texts() -> int:
    """Removes the copies of kernels' texts, which are for people and which nothing reads; the number removed."""
    return sum(_unlink(found.path) for found in texts())


def limit() -> float:
    """How many bytes entries and kernels' texts may have, by ONEPASS_CACHE_MB."""
    said = os.environ.get("ONEPASS_CACHE_MB", "").strip()
    try:
        megabytes = float(said or DEFAULT_MEGABYTES)
        if megabytes >= 0:
            return megabytes * 1e6
    except ValueError:
        pass
    log.warning("onepass: ONEPASS_CACHE_MB=%s is no number of megabytes: %g is used", said, DEFAULT_MEGABYTES)
    return DEFAULT_MEGABYTES * 1e6


def hold_to_limit() -> int:
    """Removes what was written first, where all is more than the limit; the number removed.

    What is needed again is computed again, as after `clear`.
    """
    kept, most = sorted((*entries(), *texts()), key=lambda file: file.written), limit()
    total = sum(file.bytes for file in kept)
    if total <= most:
        return 0
    removed = 0
    for file in kept:
        if total <= KEPT_SHARE * most:
            break
        removed += _unlink(file.path)
        total -= file.bytes
    return removed


@dataclass(frozen=True)
class KeptFile:
    """A file of the cache: its name, place and bytes, and when it was written, in seconds since 1970."""

    name: str
    path: Path
    bytes: int
    written: float


def entries() -> list[KeptFile]:
    """Every entry of this cache, of whatever version, the latest first. Whether one can be trusted `read` says."""
    return _kept("*/*.json", _is_entry)


def texts() -> list[KeptFile]:
    """The copies of kernels' texts beside the entries, the latest first."""
    return _kept("source/*.py", lambda path: not path.is_symlink() and not path.parent.is_symlink())


def _kept(form: str, belongs: Callable[[Path], bool]) -> list[KeptFile]:
    place, found = folder(), []
    for path in () if place is None else place.glob(form):
        with suppress(OSError):  # another process has removed it
            if belongs(path):
                known = path.lstat()
                found.append(KeptFile(path.stem, path, known.st_size, known.st_mtime))
    return sorted(found, key=lambda file: (-file.written, file.name))


class _OfThisVersion:
    """Entries that are named by their content alone, apart from those that another version has made."""

    def read(self, key: str) -> dict | None:
        return read(self._named(key))

    def write(self, key: str, data: dict) -> bool:
        return write(self._named(key), data)

    def _named(self, key: str) -> str:
        return digest([key, versions()])[:40]


OF_THIS_VERSION = _OfThisVersion()


def _path(place: Path, name: str) -> Path:
    return place / name[:2] / f"{name}.json"


def _is_entry(path: Path) -> bool:
    """Whether `write` names a file so: in a folder that is no link, which could lead anywhere."""
    name = path.stem
    named = re.fullmatch("[0-9a-f]{40}", name) is not None and path.parent.name == name[:2]
    return named and not path.parent.is_symlink()


def _unlink(path: Path) -> bool:
    """Removes a file; whether it was removed."""
    with suppress(OSError):
        path.unlink()
        return True
    return False


# Signatures -----------------------------------------------------------------------------------------------------------


def _signature(key: str, name: str, body: dict) -> str:
    return hmac.new(key.encode(), digest([FORMAT, name, body]).encode(), "sha256").hexdigest()


def _signing_key(place: Path) -> str | None:
    """This user's key in this folder; None if there is none, or one that others can read or have put there."""
    try:
        text, found = read_whole(place / "key", 64)
    except (OSError, ValueError):
        return None
    private = os.name == "nt" or not stat.S_IMODE(found.st_mode) & 0o077
    return text if len(text) == 64 and is_own(found) and private else None


def _new_signing_key(place: Path) -> str:
    """A key where there is none; of several processes, the first one's. Raises OSError."""
    make_private(place)
    path, text = place / "key", secrets.token_hex(32)
    try:
        write_whole(path, text, replaces=False)
    except OSError:  # it is there meanwhile, or was and could not be used, or files have no second names here
        if _signing_key(place) is None:
            write_whole(path, text)
    key = _signing_key(place)
    if key is None:
        raise PermissionError("no key can be kept here that is readable by this user alone")
    return key

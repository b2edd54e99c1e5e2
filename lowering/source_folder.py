"""Folders and files that onepass makes: where results and copies of kernels' texts are kept, and how files are written.

A file is written beside its place and renamed into it, so a link that stands there is replaced and never followed. Only
regular files are read, and reading never waits. Folders made here are for their user alone. ONEPASS_CACHE names a
folder; empty is as if it were not set, "off" and its like say that nothing is kept.
"""

from __future__ import annotations

import errno
import logging
import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

OFF = ("0", "off", "no", "none")
SAFELY = sum(getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_BINARY"))
UNUSABLE: set[Path] = set()  # folders of which this process has said so
log = logging.getLogger(__name__)


def say_unusable(place: Path, error: OSError) -> None:
    """Logs that nothing can be kept in a folder, once in a process."""
    if place not in UNUSABLE:
        UNUSABLE.add(place)
        named = {debug_folder(): "$ONEPASS_DEBUG_DIR", named_folder(): "$ONEPASS_CACHE"}
        why = f"{place} is a file, not a folder" if place.is_file() else str(error)
        name = named.get(place, "the cache folder")
        log.warning("onepass: %s cannot be used, so nothing is kept there: %s", name, why)


def _said() -> str:
    return os.environ.get("ONEPASS_CACHE", "").strip()


def keeps() -> bool:
    """Whether anything is to be kept."""
    return _said().lower() not in OFF


def named_folder() -> Path | None:
    """The folder, if one is named."""
    return of_this_user(Path(os.path.expanduser(_said()))) if _said() and keeps() else None


def of_this_user(folder: Path) -> Path:
    """The folder; where it belongs to another user, the one in it that is for this user."""
    try:
        return folder if is_own(folder.stat()) else folder / f"user-{os.geteuid()}"
    except OSError:  # it is to be made
        return folder


def write_source(kept: Path | None, name: str, text: str) -> Path | None:
    """Writes a kernel's text for people, to $ONEPASS_DEBUG_DIR or below the folder of kept results.

    None where there is neither, or it cannot be written, which is logged once.
    """
    debug = debug_folder()
    folder = debug or kept
    if folder is None:
        return None
    try:
        place = make_private(folder) if debug else make_own(folder / "source")
        write_whole(place / name, text)
    except OSError as error:
        say_unusable(folder, error)
        return None
    return place / name


def debug_folder() -> Path | None:
    """The folder of $ONEPASS_DEBUG_DIR, in which the texts of all stages are kept; None if it names none."""
    debug = os.environ.get("ONEPASS_DEBUG_DIR", "").strip()
    return Path(os.path.expanduser(debug)) if debug else None


def keep_stage(name: str, text: str) -> None:
    """Adds the text of a stage to this process's file in that folder, if there is one. Never raises.

    Example: "graph after replace" in stages-4711.txt.
    """
    if (folder := debug_folder()) is None:
        return
    try:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | SAFELY
        handle = os.open(make_private(folder) / f"stages-{os.getpid()}.txt", flags, 0o600)
        with open(handle, "a", encoding="utf-8") as file:
            file.write(f"--- {name}\n{text}\n\n")
    except OSError as error:
        say_unusable(folder, error)


def make_private(folder: Path) -> Path:
    """The folder, made for this user alone where it is missing, and so are those above it. Raises OSError."""
    try:
        folder.mkdir(mode=0o700)
    except FileNotFoundError:
        make_private(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError:
        if not folder.is_dir():
            raise
    return folder


def make_own(folder: Path) -> Path:
    """The same within a folder that others may write to: it has to be this user's, and no link. Raises OSError."""
    make_private(folder)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or not is_own(found):
        raise PermissionError(errno.EPERM, "not a folder of this user", str(folder))
    return folder


def is_own(found: os.stat_result) -> bool:
    """Whether a file is this user's; always, where files have no owners."""
    return not hasattr(os, "geteuid") or found.st_uid == os.geteuid()


def write_whole(path: Path, text: str, replaces: bool = True) -> None:
    """Writes a file whole or not at all, readable by this user alone. Raises OSError.

    replaces: whether a file that is there is replaced; otherwise it stays, and FileExistsError is raised.
    """
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".tmp")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        if replaces:
            os.replace(temporary, path)
        else:
            os.link(temporary, path)
    finally:
        with suppress(OSError):
            os.unlink(temporary)


def read_whole(path: Path, most: int) -> tuple[str, os.stat_result]:
    """The text of a file, and what the system says of it. Raises OSError; ValueError for what is no file of this user
    or of root, or larger than `most` bytes. Never follows a link, and never waits as for a pipe.
    """
    handle = os.open(path, os.O_RDONLY | SAFELY)
    try:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode):
            raise ValueError("it is not a regular file")
        if not is_own(found) and found.st_uid != 0:
            raise ValueError("it belongs to another user")
        with open(handle, "rb", closefd=False) as file:
            data = file.read(most + 1)
    finally:
        os.close(handle)
    if len(data) > most:
        raise ValueError(f"it has more than {most} bytes")
    return data.decode("utf-8"), found

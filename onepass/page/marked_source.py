"""The user's source around a region, with the region's lines marked, as far as the files can be read.

Lines are those of the file as it is when the page is made. Example: of lines 3 and 5 of a file, lines 1 to 7 are shown.
"""

from __future__ import annotations

import linecache
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

AROUND = 2  # lines before and behind
MAX_LINES = 60  # of a file
PACKAGES = ("site-packages", "dist-packages")


@dataclass(frozen=True)
class SourceLine:
    """A line with its number; `marked`: an operation of the region is written there. A number of 0: lines left out."""

    number: int
    text: str
    marked: bool = False


@dataclass(frozen=True)
class SourceView:
    """The lines of one file. library: the file is of an installed package, not the user's."""

    file: str
    name: str
    lines: tuple[SourceLine, ...]
    library: bool = False

    @property
    def marked(self) -> str:
        """The numbers of the marked lines, as "3-5, 9"."""
        return ranges_of([line.number for line in self.lines if line.marked])


def source_views(places: Iterable[str]) -> list[SourceView]:
    """The files of places, each "file:line", the user's own first. A file that cannot be read is left out."""
    by_file: dict[str, set[int]] = {}
    for place in places:
        file, _, line = place.rpartition(":")
        if file and line.isdigit():
            by_file.setdefault(file, set()).add(int(line))
    found = [view for file, numbers in by_file.items() if (view := _view(file, numbers)).lines]
    return sorted(found, key=lambda view: view.library)


def _view(file: str, marked: set[int]) -> SourceView:
    linecache.checkcache(file)
    texts = linecache.getlines(file)
    wanted = {n for line in marked for n in range(line - AROUND, line + AROUND + 1) if 1 <= n <= len(texts)}
    numbers = sorted(wanted if marked & wanted else ())
    lines: list[SourceLine] = []
    for n in numbers[:MAX_LINES]:
        if lines and n > lines[-1].number + 1:
            lines.append(SourceLine(0, "⋮"))
        lines.append(SourceLine(n, texts[n - 1].rstrip(), n in marked))
    if len(numbers) > MAX_LINES:
        lines.append(SourceLine(0, "⋮"))
    return SourceView(file, _short(file), tuple(lines), any(name in Path(file).parts for name in PACKAGES))


def _short(file: str) -> str:
    """The file relative to the working directory, or from its package on, or its name alone."""
    path = Path(file)
    for name in PACKAGES:
        if name in path.parts:
            return "/".join(path.parts[path.parts.index(name) + 1 :])
    try:
        return str(path.relative_to(Path.cwd()))
    except (ValueError, OSError):
        return path.name


def ranges_of(numbers: Iterable[int]) -> str:
    """Numbers in rising order, as "3-5, 9"."""
    runs: list[list[int]] = []
    for n in numbers:
        if runs and n == runs[-1][1] + 1:
            runs[-1][1] = n
        else:
            runs.append([n, n])
    return ", ".join(f"{a}-{b}" if b > a else str(a) for a, b in runs)

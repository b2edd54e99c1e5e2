"""What the tables of docs/measurements.md are made of: rows of data files in bench/results, and numbers as text.

Example: `figure(row["milliseconds"])` is "0.0451".
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Mapping, Sequence
from math import floor, log10
from pathlib import Path
from textwrap import fill

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "bench" / "results"
OURS = "onepass"
WIDTH = 120
TIMES = ("ms", "milliseconds", "forward_s", "forward", "kernels_us")  # A row without one says why nothing was measured.

Row = Mapping[str, str]
Case = dict[str, Row]  # of one problem: rows by contestant


# Files ----------------------------------------------------------------------------------------------------------------


def rows(file: str) -> list[Row]:
    """The rows of a data file."""
    with (RESULTS / file).open(newline="", encoding="utf-8") as opened:
        return list(csv.DictReader(opened))


def cases(file: str, *keys: str) -> dict[tuple[str, ...], Case]:
    """The rows by problem, which the columns name, and by contestant."""
    found: dict[tuple[str, ...], Case] = {}
    for row in rows(file):
        found.setdefault(tuple(row[k] for k in keys), {})[row["contestant"]] = row
    return found


def provenance(*files: str) -> str:
    """The files, and the machine and versions that their rows name; else the GPU that their names end with."""
    named = ", ".join(f"`{file}`" for file in files)
    found: dict[str, None] = {}
    for file in files:
        timed = (row for row in rows(file) if any(row.get(column) for column in TIMES))
        found |= dict.fromkeys(_machine(file, row) for row in timed)
    return fill(f"From {named}: {'; '.join(found)}.", WIDTH, break_on_hyphens=False)


def _machine(file: str, row: Row) -> str:
    machine = row.get("machine") or row.get("where")
    if not machine:
        gpu = file.rpartition("_")[2].partition(".")[0].upper()
        return f"NVIDIA {gpu}, versions not recorded"
    rest = (f"driver {row['driver']}" if row.get("driver") else "", row.get("dtype", ""), row.get("versions", ""))
    said = ", ".join(filter(None, (machine, *rest)))
    return said if row.get("versions") else f"{said}, versions not recorded"


# Numbers --------------------------------------------------------------------------------------------------------------


def figure(value: str | float | None) -> str:
    """Three figures: 0.0451, 2.83, 11.9, 2885. Nothing where nothing was measured."""
    number = float(value or 0)
    if not number:
        return ""
    return f"{number:.{max(0, 2 - floor(log10(number)))}f}"


def over(case: Case, other: str, column: str = "ms") -> float | None:
    """How many times as long the other takes."""
    measured = [case.get(name, {}).get(column) for name in (other, OURS)]
    return float(measured[0]) / float(measured[1]) if measured[0] and measured[1] else None


def times(value: float | None) -> str:
    """A ratio: two digits behind the point below 10, then three figures."""
    return "" if value is None else f"{value:.2f}" if value < 9.995 else figure(value)


def sizes(shape: str) -> tuple[int, ...]:
    """Of b4h32s4096d64: 4, 32, 4096, 64."""
    return tuple(map(int, re.findall(r"\d+", shape)))


def table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A table of Markdown."""
    written = [head, ["---"] * len(head), *lines]
    return "".join(f"| {' | '.join(line)} |\n".replace("|  |", "| |") for line in written)

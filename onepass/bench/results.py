"""What was measured, as rows of a CSV file, a table for people, and plots. Rows name machine and versions themselves.

A file is read back to go on where a run ended and to print or plot it again.
"""

from __future__ import annotations

import csv
import math
import platform
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import date
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from rich.table import Table

OURS = "onepass"
# The columns of the closing table, and the contestants of which each takes the fastest.
AGAINST = {
    "flex": r"flex(_x2)?$",
    "flex_max": r"flex(_x2)?_max$",
    "flex_built": "flex_built$",
    "flex_built_plain": "flex_built_plain$",
    "compile": "compile$",
    "best SDPA": "sdpa_",
    "fa3": "fa3$",
    "eager": "eager$",
}


@dataclass(frozen=True)
class Measurement:
    """One contestant on one problem. Texts, as in the file; an empty `ms` has its reason in `note`."""

    suite: str
    variant: str
    shape: str
    contestant: str
    executor: str = ""
    ms: str = ""
    least_ms: str = ""
    most_ms: str = ""
    tflops: str = ""
    peak_mib: str = ""
    error: str = ""
    allowed: str = ""
    note: str = ""
    rounds: str = ""
    sm_mhz: str = ""
    memory_mhz: str = ""
    watts: str = ""
    celsius: str = ""
    driver: str = ""
    dtype: str = ""
    machine: str = ""
    versions: str = ""

    @property
    def case(self) -> tuple[str, str, str]:
        return self.suite, self.variant, self.shape

    @property
    def time(self) -> float | None:
        return float(self.ms) if self.ms else None


Case = dict[str, Measurement]  # of one problem: rows by contestant
CSV_COLUMNS = tuple(f.name for f in fields(Measurement))


def read(path: Path) -> list[Measurement]:
    """The rows of a file; none if there is none. Raises ValueError for a file of other columns."""
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        if tuple(reader.fieldnames or CSV_COLUMNS) != CSV_COLUMNS:
            raise ValueError(f"{path} has columns {', '.join(reader.fieldnames or ())}, not {', '.join(CSV_COLUMNS)}")
        return [Measurement(**row) for row in reader]


def append(path: Path, rows: Iterable[Measurement]) -> None:
    """Adds rows, under the header if the file is new."""
    new = not path.exists() or path.stat().st_size == 0
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, CSV_COLUMNS)
        if new:
            writer.writeheader()
        writer.writerows(map(asdict, rows))


def write_rows(
    path: Path, columns: Sequence[str], rows: Iterable[Mapping[str, object]], measured_now: bool = True
) -> None:
    """A file with these columns; what a row lacks stays empty. measured_now: one column more says the versions and the
    day."""
    named = [*columns, *(["versions"] if measured_now and "versions" not in columns else [])]
    known = {"versions": versions()} if measured_now else {}
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, named)
        writer.writeheader()
        writer.writerows(known | dict(row) for row in rows)


def versions() -> str:
    """The versions of everything that takes part, and the day."""
    import torch

    found = {"python": platform.python_version(), "torch": torch.__version__, "onepass": _version("onepass")}
    found |= {"triton": _version("triton"), "fa3-fwd": _version("fa3-fwd"), "cuda": torch.version.cuda or ""}
    found["cudnn"] = str(torch.backends.cudnn.version() or "") if torch.cuda.is_available() else ""
    return " ".join(f"{name} {number}" for name, number in found.items() if number) + f" on {date.today()}"


def _version(name: str) -> str:
    from .. import __version__

    try:
        return __version__ if name == "onepass" else metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def by_case(rows: Iterable[Measurement]) -> dict[tuple[str, str, str], Case]:
    found: dict[tuple[str, str, str], Case] = {}
    for row in rows:
        found.setdefault(row.case, {})[row.contestant] = row
    return found


def contestants(rows: Iterable[Measurement]) -> list[str]:
    return list(dict.fromkeys(row.contestant for row in rows))


def best(case: Case, names: str = "") -> Measurement | None:
    """The fastest of the others, or of those whose names begin as the regular expression says."""
    timed = [row for name, row in case.items() if name != OURS and re.match(names, name) and row.time]
    return min(timed, key=lambda row: row.time) if timed else None


def ratio(case: Case, other: Measurement | None) -> float | None:
    """How many times as fast as the other onepass is."""
    ours = case.get(OURS)
    return other.time / ours.time if ours and ours.time and other and other.time else None


def geometric(values: Iterable[float | None]) -> float | None:
    """The geometric mean of what is known."""
    known = [math.log(v) for v in values if v]
    return math.exp(sum(known) / len(known)) if known else None


def speedups(rows: list[Measurement], suite: str) -> dict[str, tuple[float, int]]:
    """Onepass's geometric mean speed-up over each contestant, and over how many problems; "best": each problem's."""
    cases = [case for name, case in by_case(rows).items() if name[0] == suite]
    found = {}
    for name in [*contestants(rows), "best"]:
        ratios = [ratio(c, best(c) if name == "best" else c.get(name)) for c in cases]
        mean = geometric(ratios)
        if mean and name != OURS:
            found[name] = (mean, sum(r is not None for r in ratios))
    return found


def table(rows: list[Measurement]) -> Table:
    """A rich table of TFLOP/s (milliseconds below), with the ratio to the fastest other."""
    from rich.table import Table

    names = contestants(rows)
    title = "TFLOP/s over ms; - has a reason in the file"
    made = Table("variant", "shape", *names, "over best", "runs by", title=title)
    for (_, variant, shape), case in by_case(rows).items():
        against = best(case)
        over = ratio(case, against)
        last = f"{over:.2f} {against.contestant}" if over else "-"
        who = case[OURS].executor if OURS in case else ""
        made.add_row(variant, shape, *(_cell(case.get(n)) for n in names), last, who)
    return made


def _cell(row: Measurement | None) -> str:
    if row is None:
        return ""
    return f"{float(row.tflops):.4g}\n{row.time:.4g}" if row.time else "-"


def ratios(rows: list[Measurement]) -> Table:
    """A rich table: each variant's speed-ups over its shapes, as geometric means, and onepass's memory at most."""
    from rich.table import Table

    cases = by_case(rows)
    held = [name for name, names in AGAINST.items() if any(best(case, names) for case in cases.values())]
    title = "times as fast as, geometric means over the shapes; least in brackets"
    made = Table("variant", "shapes", *held, "peak MiB", "runs by", title=title)
    for suite, variant in dict.fromkeys((suite, variant) for suite, variant, _ in cases):
        shapes = [case for name, case in cases.items() if name[:2] == (suite, variant)]
        ran = dict.fromkeys(row.executor or row.note for row in _ours(shapes))
        made.add_row(variant, *_ratio_cells(shapes, held), ", ".join(ran))
    made.add_row("geometric mean", *_ratio_cells(list(cases.values()), held), "")
    return made


def _ours(cases: list[Case]) -> list[Measurement]:
    return [case[OURS] for case in cases if OURS in case]


def _ratio_cells(cases: list[Case], contestants: list[str]) -> list[str]:
    """Of some problems: their number, the mean ratio to each contestant, and the most memory that onepass needs."""
    peaks = [float(row.peak_mib) for row in _ours(cases) if row.peak_mib]
    means = [_mean([ratio(case, best(case, AGAINST[name])) for case in cases]) for name in contestants]
    return [str(len(cases)), *means, f"{max(peaks):.1f}" if peaks else ""]


def _mean(known: list[float | None]) -> str:
    timed = [x for x in known if x]
    return f"{geometric(timed):.3g} ({min(timed):.3g})" if timed else "-"


def summary(rows: list[Measurement]) -> str:
    """One line a suite and contestant."""
    lines = []
    for suite in dict.fromkeys(row.suite for row in rows):
        for name, (mean, count) in speedups(rows, suite).items():
            what = "the best other of each problem" if name == "best" else name
            lines.append(f"{suite}: {mean:.3f} times {what} (geometric mean over {count} problems)")
    return "\n".join(lines)


def plot(rows: list[Measurement], path: Path) -> list[Path]:
    """A PNG for each suite, path with the suite's name before its ending. Raises ImportError without matplotlib."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    written = []
    for suite in dict.fromkeys(row.suite for row in rows):
        cases = {name: case for name, case in by_case(rows).items() if name[0] == suite}
        names = [n for n in contestants(rows) if any(n in c and c[n].time for c in cases.values())]
        figure, axes = pyplot.subplots(figsize=(max(6.0, 0.22 * len(cases) * (len(names) + 2)), 4.5))
        _draw_bars(axes, cases, names)
        axes.set_title(f"{suite}: {rows[0].machine}, {rows[0].dtype}", fontsize=9)
        written.append(path.with_name(f"{path.stem}_{suite}{path.suffix or '.png'}"))
        figure.savefig(written[-1], dpi=150, bbox_inches="tight")
        pyplot.close(figure)
    return written


def _draw_bars(axes: Axes, cases: dict[tuple[str, str, str], Case], names: list[str]) -> None:
    """A group of bars for each problem, a bar for each contestant; those without a time have height 0."""
    width = len(names) + 2
    for number, name in enumerate(names):
        heights = [float(c[name].tflops) if name in c and c[name].time else 0.0 for c in cases.values()]
        axes.bar([k * width + number for k in range(len(cases))], heights, width=1.0, label=name)
    middles = [k * width + len(names) / 2 for k in range(len(cases))]
    axes.set_xticks(middles, [f"{v}\n{s}" for _, v, s in cases], rotation=60, ha="right", fontsize=7)
    axes.set_ylabel("TFLOP/s")
    axes.legend(fontsize=7, ncols=3)

"""What onepass did and why, as frozen records that print as text and write themselves as JSON and HTML.

Built by fused.py (one RegionReport per distinct region) and backend.py (one Report per graph); `reports()` gives every
Report of this process. Nothing here decides anything: a report can always be thrown away.
"""

from __future__ import annotations

import html
import json
import re
from collections import Counter, OrderedDict
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path


@dataclass(frozen=True)
class Step:
    """A rule that fired. `trusted` is set for a user's rule that nobody proved."""

    rule: str
    law: str
    exact: str = ""
    trusted: bool = False


class Steps(tuple[Step, ...]):
    """The rules of a derivation in order of first use; printed, it is the whole derivation as readable mathematics."""

    text: str

    def __new__(cls, steps=(), text: str = ""):
        made = super().__new__(cls, steps)
        made.text = text
        return made

    def __str__(self) -> str:
        return self.text or "nothing was derived"


@dataclass(frozen=True)
class Refused:
    """A region that stays as the user wrote it: why, and where in the user's file."""

    reason: str
    file: str = ""
    line: int = 0
    kind: str = "unsupported"

    @property
    def where(self) -> str:
        return f"{self.file}:{self.line}" if self.file else "(source line unknown)"


@dataclass(frozen=True)
class KernelReport:
    """One launch: parallel dims, loops in order, where its source lies (empty: not emitted), its form on Hopper.

    masks: for each loop with a mask, the coordinates that are visited: ranges, a block map, or all, tested.
    parts: how its loops are shared out over more programs, where sizes leave it few.
    """

    name: str
    grid: tuple[str, ...] = ()
    rows: str = ""
    loops: tuple[str, ...] = ()
    source: str = ""
    form: str = ""
    masks: tuple[str, ...] = ()
    parts: str = ""


@dataclass(frozen=True)
class RegionReport:
    """One fused region. Bytes are None where a size is not known; `notes` say what went wrong and was survived.

    proof: the derivations as readable mathematics; certificates: the same as data, for `python -m onepass verify`.
    around: what stands in front of the inputs and behind the result, and whether the kernels compute it.
    between: what kernels store for each other, and which masks are classed by a map, with the reason.
    executor is what was asked for; ran: who ran last in this process, empty if nobody did.
    """

    key: str
    places: tuple[str, ...]
    captured: str
    extracted: str
    derivation: tuple[Step, ...]
    passes: tuple[int, int]
    bytes: tuple[int | None, int | None]
    kernels: tuple[KernelReport, ...]
    statistics: dict
    executor: str
    cache: str
    backward: str
    notes: tuple[str, ...] = ()
    count: int = 1
    proof: str = ""
    certificates: tuple[dict, ...] = ()
    ran: str = ""
    around: tuple[str, ...] = ()
    between: tuple[str, ...] = ()

    def __post_init__(self):
        object.__setattr__(self, "derivation", Steps(self.derivation, self.proof))

    @property
    def assumptions(self) -> tuple[str, ...]:
        """Sentences beyond reassociation that the derivation relies on."""
        return tuple(dict.fromkeys(s.exact for s in self.derivation if s.exact not in ("", "bitwise", "reassociates")))

    @property
    def trusted(self) -> tuple[str, ...]:
        """Rules used on their author's word."""
        return tuple(dict.fromkeys(s.rule for s in self.derivation if s.trusted))

    def __str__(self) -> str:
        return "\n".join(_region_lines(self))

    @classmethod
    def from_data(cls, data: dict) -> RegionReport:
        """The record that `asdict` and JSON made plain. Raises TypeError or KeyError for anything else."""
        kept = {f.name: data[f.name] for f in fields(cls)}
        kept["derivation"] = tuple(Step(**step) for step in data["derivation"])
        kept["kernels"] = tuple(KernelReport(**_tuples(kernel)) for kernel in data["kernels"])
        return cls(**_tuples(kept))


@dataclass(frozen=True)
class Report:
    """Everything about one compiled function: its regions, what was refused, and what failed inside onepass."""

    regions: tuple[RegionReport, ...] = ()
    refusals: tuple[Refused, ...] = ()
    failures: tuple[str, ...] = ()
    graphs: int = 1
    title: str = field(default="", compare=False)

    @property
    def kernels(self) -> tuple[KernelReport, ...]:
        return tuple(kernel for region in self.regions for kernel in region.kernels)

    @property
    def derivation(self) -> Steps:
        steps = (step for region in self.regions for step in region.derivation)
        return Steps(steps, "\n\n".join(str(region.derivation) for region in self.regions))

    @property
    def passes(self) -> tuple[int, int]:
        """The largest number of passes over one dim, before and after."""
        return tuple(max((r.passes[k] for r in self.regions), default=0) for k in (0, 1))

    @property
    def bytes(self) -> tuple[int | None, int | None]:
        """Bytes moved in all regions by eager and by the plans; None where a size is not known."""
        return tuple(_sum([r.bytes[k] for r in self.regions]) for k in (0, 1))

    @property
    def statistics(self) -> tuple[dict, ...]:
        return tuple(region.statistics for region in self.regions)

    @property
    def assumptions(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(a for region in self.regions for a in region.assumptions))

    @property
    def trusted(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(t for region in self.regions for t in region.trusted))

    def __str__(self) -> str:
        return "\n".join(_report_lines(self))

    def json(self) -> str:
        """Everything as JSON text."""
        data = asdict(self) | {"passes": self.passes, "bytes": self.bytes}
        return json.dumps(data | {"assumptions": self.assumptions, "trusted": self.trusted}, indent=1, default=str)

    def html(self, path) -> Path:
        """Writes one self-contained page and returns its path."""
        path = Path(path)
        path.write_text(_page(self), encoding="utf-8")
        return path


# Records of this process ----------------------------------------------------------------------------------------------

_MOST = 256  # of a long-lived process, the latest reports are kept
_REPORTS: OrderedDict[int, Report] = OrderedDict()
_ATTACHED: OrderedDict[str, RegionReport] = OrderedDict()


def record(report: Report) -> None:
    """Keeps a graph's report; the backend and the pass call it."""
    _REPORTS[len(_REPORTS) + 1 if not _REPORTS else next(reversed(_REPORTS)) + 1] = report
    for region in report.regions:
        attach(region)
    while len(_REPORTS) > _MOST:
        _REPORTS.popitem(last=False)


def attach(region: RegionReport) -> None:
    """Keeps a region's report under its key, with an older one's notes; the operator calls it when it first runs."""
    old = _ATTACHED.get(region.key)
    notes = tuple(dict.fromkeys((*(old.notes if old else ()), *region.notes)))
    _ATTACHED[region.key] = replace(region, notes=notes, ran=region.ran or (old.ran if old else ""))
    while len(_ATTACHED) > _MOST:
        _ATTACHED.popitem(last=False)


def note(key: str, sentence: str) -> None:
    """Adds what was seen at run time to a region's report."""
    region = _ATTACHED.get(key)
    if region is not None and sentence not in region.notes:
        attach(replace(region, notes=(*region.notes, sentence)))


def ran(key: str, who: str) -> None:
    """Says who ran a region; the operator calls it when that changes."""
    region = _ATTACHED.get(key)
    if region is not None:
        _ATTACHED[key] = replace(region, ran=who)


def reports() -> tuple[Report, ...]:
    """Every report of this process, oldest first; programs out of a compiler's cache are in one last report."""
    kept = [replace(r, regions=tuple(_with_notes(x) for x in r.regions)) for r in _REPORTS.values()]
    seen = {region.key for report in kept for region in report.regions}
    cached = tuple(region for key, region in _ATTACHED.items() if key not in seen)
    return (*kept, Report(cached, title="programs found in a compiler's cache")) if cached else tuple(kept)


def _with_notes(region: RegionReport) -> RegionReport:
    known = _ATTACHED.get(region.key)
    return region if known is None else replace(region, notes=known.notes, ran=known.ran)


def forget() -> None:
    """Drops every report of this process."""
    _REPORTS.clear()
    _ATTACHED.clear()


# Text -----------------------------------------------------------------------------------------------------------------


def _report_lines(report: Report):
    many = "graph" if report.graphs == 1 else "graphs"
    fused = sum(region.count for region in report.regions)
    head = f"onepass: {fused} fused, {len(report.refusals)} left as written, in {report.graphs} {many}"
    yield head + (f" ({report.title})" if report.title else "")
    for number, region in enumerate(report.regions, 1):
        yield f"\nregion {number}"
        yield from (f"  {line}" for line in _region_lines(region))
    for refused in report.refusals:
        yield f"\nleft as written: {refused.where}\n  {refused.reason}"
    for failure in report.failures:
        yield f"\nfailed inside onepass, the original runs: {failure}"
    if not (report.regions or report.refusals or report.failures):
        yield "no reduction that feeds a contraction was found: there is nothing to fuse"


def _region_lines(region: RegionReport):
    times = f" ({region.count} times)" if region.count > 1 else ""
    yield f"at          {', '.join(region.places) or '(source line unknown)'}{times}"
    yield from _labelled("captured", region.captured)
    yield from _labelled("extracted", region.extracted)
    for number, (step, times) in enumerate(_runs(region.derivation), 1):
        again = f" ({times} times)" if times > 1 else ""
        yield f"{'rules' if number == 1 else '':11} {number:2}. {step.rule}{again}: {step.law}"
    yield f"passes      {region.passes[0]} -> {region.passes[1]}{_in_loops(region)}"
    yield f"bytes       {_bytes(region.bytes[0])} -> {_bytes(region.bytes[1])} (estimated)"
    for kernel in region.kernels:
        where = f", source {kernel.source}" if kernel.source else ""
        loops = f"loops over {', '.join(kernel.loops)}" if kernel.loops else "no loop"
        yield f"kernel      {kernel.name}: grid ({', '.join(kernel.grid)}), rows {kernel.rows or '-'}, {loops}{where}"
        yield from (f"mask        {mask}" for mask in kernel.masks)
        yield from (f"in parts    {line}" for line in filter(None, [kernel.parts]))
        yield from _labelled("on Hopper", kernel.form)
    yield from (f"between     {line}" for line in region.between)
    yield from (f"around      {line}" for line in region.around)
    yield "search      " + ", ".join(f"{k} {_statistic(v)}" for k, v in region.statistics.items())
    yield f"runs by     {region.executor}" + (f": {region.ran}" if region.ran else "")
    yield f"backward    {region.backward}"
    yield f"cache       {region.cache}"
    yield from (f"assumes     {a}" for a in region.assumptions)
    yield from (f"trusted     {t}: not proved, used on its author's word" for t in region.trusted)
    yield from (f"note        {n}" for n in region.notes)


def _in_loops(region: RegionReport) -> str:
    """How many loops the passes are, where that is another number: what a tile holds whole is read once, in none."""
    names = (re.sub(r"_\d+$", "", name) for kernel in region.kernels for name in kernel.loops)  # j_0 is j bound again
    loops = max(Counter(names).values(), default=0)
    if not region.kernels or loops == region.passes[1]:
        return ""
    many = f"{loops or 'no'} loop{'' if loops == 1 else 's'}"
    return f", in {many}" + (": what is passed over fits in a tile" if loops < region.passes[1] else "")


def _labelled(label: str, text: str):
    for number, line in enumerate(text.splitlines() or [""]):
        yield f"{label if number == 0 else '':11} {line}"


def _runs(steps):
    """Equal steps in a row, with how many."""
    runs: list[list] = []
    for step in steps:
        if runs and runs[-1][0] == step:
            runs[-1][1] += 1
        else:
            runs.append([step, 1])
    return [tuple(run) for run in runs]


def _statistic(value) -> str:
    """A number, or what several of them come to; JSON has each."""
    if isinstance(value, dict):
        value = {k: sum(v.values()) if isinstance(v, dict) else v for k, v in value.items()}
    if isinstance(value, dict) and all(isinstance(v, int) for v in value.values()):
        return f"{sum(value.values())} by {len(value)} rules"
    if isinstance(value, dict):
        return " and ".join(dict.fromkeys(map(str, value.values())))
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _bytes(count: int | None) -> str:
    if count is None:
        return "unknown"
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} B"


def _sum(counts):
    return None if any(c is None for c in counts) else sum(counts)


def _tuples(data: dict) -> dict:
    return {k: tuple(v) if isinstance(v, list) else v for k, v in data.items()}


_STYLE = "body{font:15px/1.5 system-ui,sans-serif;max-width:70em;margin:2em auto;padding:0 1em;color:#222}"
_STYLE += "pre{background:#f5f5f2;padding:1em;overflow-x:auto;white-space:pre-wrap}"
_STYLE += "td,th{padding:.2em 1em .2em 0;text-align:left;vertical-align:top}"


def _page(report: Report) -> str:
    """The report's text under a table of its regions; every piece of it is escaped."""
    rows = [
        ("at", "passes", "bytes", "rules", "kernels"),
        *((", ".join(r.places), _arrow(r.passes, str), _arrow(r.bytes, _bytes), str(len(r.derivation)),
           ", ".join(k.name for k in r.kernels)) for r in report.regions),
    ]  # fmt: skip
    tags = ["th", *["td"] * len(report.regions)]
    cells = ["".join(f"<{tag}>{html.escape(c)}</{tag}>" for c in row) for row, tag in zip(rows, tags, strict=True)]
    table = "".join(f"<tr>{row}</tr>" for row in cells)
    head = f"<!doctype html><html lang=en><meta charset=utf-8><title>onepass report</title><style>{_STYLE}</style>"
    return f"{head}<h1>onepass report</h1><table>{table}</table><pre>{html.escape(str(report))}</pre></html>\n"


def _arrow(pair, say) -> str:
    return f"{say(pair[0])} → {say(pair[1])}"


# Looking without touching ---------------------------------------------------------------------------------------------


def explain(function, *inputs, rules=(), options=None, **keywords) -> Report:
    """What onepass would do with function(*inputs, **keywords), graph by graph; nothing is replaced.

    rules: the user's, as in `options={"rules": rules}`; options: the backend's. The function runs once, as written.
    Raises OptionError for unknown options, and whatever the function raises.
    """
    import torch
    from torch._dynamo import config

    from .backend import Recorder
    from .options import Options

    recorder = Recorder(Options.read({"rules": rules, **(options or {})}))
    function = getattr(function, "_orig_mod", getattr(function, "_torchdynamo_orig_callable", function))
    limits = {n: 1 << 20 for n in ("recompile_limit", "accumulated_recompile_limit") if hasattr(config, n)}
    with config.patch(limits):
        torch.compile(function, backend=recorder)(*inputs, **keywords)
    return merged(recorder.reports)


def merged(graphs) -> Report:
    """The reports of several graphs as one."""
    graphs = tuple(graphs)
    regions = tuple(region for report in graphs for region in report.regions)
    refusals = tuple(dict.fromkeys(r for report in graphs for r in report.refusals))
    failures = tuple(dict.fromkeys(f for report in graphs for f in report.failures))
    return Report(regions, refusals, failures, len(graphs))

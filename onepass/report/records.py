"""What onepass did and why, as frozen records that print as text and write themselves as JSON and HTML.

Nothing here decides anything: a report can always be thrown away.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from os import PathLike
from pathlib import Path
from typing import Any

from ..egraph.derivation.certificate import Derivation
from ..errors import InputError
from ..lowering.plan.records import Plan
from ..lowering.readback.erase_stored import certificates as of_plan
from ..messages import Message
from ..process_state import keep_latest, registered
from ..wording.answers import Answer, answers
from ..wording.report_text import notebook_cell, report_lines
from ..wording.text import (
    derivative_lines,
    headline,
    law_lines,
    law_outcome,
    region_headline,
    region_lines,
)

CERTIFICATE_FORMAT = 1
DERIVED = "derived"  # how a report's line on the backward begins, if there is a plan for it
RECOMPUTES = "computed again by the original calls under autograd: "  # so, where there is none and the region is fused


@dataclass(frozen=True)
class Step:
    """A rule that fired. `trusted` is set for a user's rule that nobody proved."""

    rule: str
    law: str
    exact: str = ""
    trusted: bool = False


@dataclass(frozen=True)
class LawReport:
    """What became, in one region, of a law that was given: whether a derivation of a result uses it.

    matches: how often the search found a side of it. declined: why and how often it gave no right side. stopped: the
    limit at which the search ended; empty if it ended by itself.
    """

    name: str
    used: bool
    matches: int = 0
    declined: tuple[tuple[str, int], ...] = ()
    stopped: str = ""

    def __str__(self) -> str:
        return law_outcome(self)


class Steps(tuple[Step, ...]):
    """The rules of derivations in order of first use; printed, it is the whole derivations as readable mathematics."""

    certificates: tuple[dict, ...]

    def __new__(cls, steps=(), certificates: tuple[dict, ...] = ()):
        made = super().__new__(cls, steps)
        made.certificates = certificates
        return made

    def __str__(self) -> str:
        laws = {step.rule: step.law for step in self}
        derivations = (Derivation.from_json(written["derivation"]) for written in self.certificates)
        return "\n\n".join(d.explained(laws) for d in derivations) or "nothing was derived"


@dataclass(frozen=True)
class Refused:
    """A region that stays as the user wrote it: why, and where in the user's file."""

    reason: str
    file: str = ""
    line: int = 0
    kind: str = "unsupported"
    code: str = ""

    @classmethod
    def of(cls, message: Message, file: str = "", line: int = 0, **named: object) -> Refused:
        """The refusal that a record describes; named: what is in its braces."""
        return cls(message.sentence.format(**named), file, line, message.kind, message.code)

    @property
    def where(self) -> str:
        return f"{self.file}:{self.line}" if self.file else "(source line unknown)"


@dataclass(frozen=True)
class KernelReport:
    """One launch: parallel dims, loops in order, where its source lies (empty: nowhere), its form on Hopper.

    masks: for each loop with a mask, the coordinates that are visited: ranges, a block map, or all, tested.
    parts: how its loops are shared out over more programs, where sizes leave it few. stores: what it writes. products:
    the products of matrices for each tile, as "i by j over d". estimate: its time on an H200, and what bounds it.
    """

    name: str
    grid: tuple[str, ...] = ()
    rows: str = ""
    loops: tuple[str, ...] = ()
    source: str = ""
    form: str = ""
    masks: tuple[str, ...] = ()
    parts: str = ""
    stores: tuple[str, ...] = ()
    products: tuple[str, ...] = ()
    estimate: str = ""


@dataclass(frozen=True)
class SavedReport:
    """A value that a forward keeps for its backward: its dims, what computes it, its bytes (None: a size is unknown).

    is_result: a result of the region, which is kept anyway.
    """

    name: str
    dtype: str
    dims: tuple[str, ...]
    form: str
    bytes: int | None
    is_result: bool = False


@dataclass(frozen=True)
class DerivativeReport:
    """The gradients, or the tangents, of a region: what was derived, from which rules, and the kernels that compute it.

    why_not: why they are not derived but computed by the original calls; nothing else is said then. forms: the name of
    what each derivative is of, and the derivative. rules: of all chains. rows: of the table of derivatives, each with
    how often it is used. equations: what is known of saved values, and whether that is shown. deterministic: whether
    each run gives the same bits. certificates: as data, for `python -m onepass verify`. between: as in `RegionReport`.
    """

    kind: str
    why_not: str = ""
    forms: tuple[tuple[str, str], ...] = ()
    rules: tuple[Step, ...] = ()
    rows: tuple[tuple[str, int], ...] = ()
    saved: tuple[SavedReport, ...] = ()
    equations: tuple[str, ...] = ()
    kernels: tuple[KernelReport, ...] = ()
    deterministic: str = ""
    assumptions: tuple[str, ...] = ()
    certificates: tuple[dict, ...] = ()
    between: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "\n".join(derivative_lines(self))


@dataclass(frozen=True)
class RegionData:
    """What a region's page is computed from when it is made: references, which cost a compile nothing.

    sizes: numbers for symbolic sizes, of the example. calls: of eager, None if that is not known. inputs: for each
    tensor of the plan that a mask reads, the name of the graph's value. tensors: those of them that are at hand, as
    they were in this call.
    """

    plan: Plan
    sizes: Mapping[str, int] = field(default_factory=dict)
    calls: int | None = None
    inputs: Mapping[str, str] = field(default_factory=dict)
    tensors: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class RegionReport:
    """One fused region. Bytes are None where a size is not known; `notes` say what went wrong and was survived.

    certificates: the derivations as data, for `python -m onepass verify`.
    around: what stands in front of the inputs and behind the result, and whether the kernels compute it.
    between: what kernels store for each other, and which masks are classed by a map, with the reason.
    executor is what was asked for; ran: who ran last in this process, empty if nobody did; device: of its inputs;
    libraries: whether torch's own may run it where it is faster. training_ran: as ran, of forwards whose backward is
    derived; backward_ran, forward_mode_ran: of these.
    forward_mode: what became of tangents, since some were first given; empty if none were.
    plan_passes: the planning passes that changed something. shape_reasons: each kernel's rows, and why these.
    plan_check: how the plan was read back and compared with the extracted terms.
    deterministic: whether the plan adds in a fixed order; the backward's line says it of its own plan.
    invariant: what is fixed so that bits of a row depend on that row alone; empty where nothing is.
    rounded: what the option `weights` lets a kernel round; empty where it rounds nothing.
    gradients, tangents: of what was derived, where `explain` is asked for it.
    laws: what became of each law that was given.
    seconds: of each stage of its first runs in this process: kernels, their check, rivals, and the runs themselves.
    lines: the user's lines of the operations, in order. layers: paths of the modules that have the region.
    data: what its page is computed from; no part of the text or of JSON.
    """

    key: str
    places: tuple[str, ...]
    captured: str
    extracted: str
    derivation: tuple[Step, ...]
    passes: tuple[int, int]
    kernels: tuple[KernelReport, ...]
    statistics: dict
    executor: str
    cache: str
    backward: str
    bytes: tuple[int | None, int | None] = (None, None)
    notes: tuple[str, ...] = ()
    count: int = 1
    certificates: tuple[dict, ...] = ()
    ran: str = ""
    around: tuple[str, ...] = ()
    between: tuple[str, ...] = ()
    device: str = ""
    libraries: bool = True
    plan_passes: tuple[str, ...] = ()
    shape_reasons: tuple[str, ...] = ()
    plan_check: str = ""
    training_ran: str = ""
    backward_ran: str = ""
    forward_mode: str = ""
    forward_mode_ran: str = ""
    deterministic: bool = False
    invariant: str = ""
    rounded: str = ""
    gradients: DerivativeReport | None = None
    tangents: DerivativeReport | None = None
    lines: tuple[str, ...] = ()
    layers: tuple[str, ...] = ()
    laws: tuple[LawReport, ...] = ()
    seconds: dict[str, float] = field(default_factory=dict, compare=False)
    data: RegionData | None = field(default=None, compare=False, repr=False)

    def __post_init__(self):
        object.__setattr__(self, "derivation", Steps(self.derivation, self.certificates))

    @property
    def every_certificate(self) -> tuple[dict, ...]:
        """The certificates of the results, of what the plan stores between kernels, and of the derivatives behind them.
        """
        derived = (found for found in (self.gradients, self.tangents) if found is not None)
        stored = of_plan(self.data.plan) if self.data is not None else ()
        return (*self.certificates, *stored, *(c for found in derived for c in found.certificates))

    @property
    def recomputed(self) -> str:
        """Why the original calls compute its backward, under autograd; empty where they do not."""
        return self.backward.removeprefix(RECOMPUTES) if self.backward.startswith(RECOMPUTES) else ""

    @property
    def assumptions(self) -> tuple[str, ...]:
        """Sentences beyond reassociation that the derivation relies on, and what an option lets a kernel round."""
        found = [s.exact for s in self.derivation if s.exact not in ("", "bitwise", "reassociates")]
        return tuple(dict.fromkeys([*found, *([self.rounded] if self.rounded else [])]))

    @property
    def trusted(self) -> tuple[str, ...]:
        """Rules used on their author's word."""
        return tuple(dict.fromkeys(s.rule for s in self.derivation if s.trusted))

    def __str__(self) -> str:
        return self.text()

    def text(self, verbose: bool = False) -> str:
        """The text of the region. verbose: also the search, the cache, the check of the plan, settings of kernels."""
        return "\n".join(region_lines(self, verbose))

    def __repr__(self) -> str:
        return f"<RegionReport: {region_headline(self)}>"


@dataclass(frozen=True)
class Report:
    """Everything about one compiled function: its regions, what was refused, and what failed inside onepass.

    breaks: where Dynamo ends one graph and begins another, with its reason. given: names of the laws that were given.
    options: those that it is for, as a user writes them; another choice may fuse more, or less.
    seconds: of each stage of the compilation, which add up to it; those of first runs are in the regions.

    >>> import onepass, torch
    >>> def attend(q, k, v):
    ...     return torch.softmax(q @ k.mT, -1) @ v
    >>> report = onepass.explain(attend, *(torch.randn(2, 300, 64) for _ in range(3)))
    >>> report, report.passes
    (<Report: 1 fused>, (3, 1))
    """

    regions: tuple[RegionReport, ...] = ()
    refusals: tuple[Refused, ...] = ()
    failures: tuple[str, ...] = ()
    graphs: int = 1
    breaks: tuple[Refused, ...] = ()
    title: str = field(default="", compare=False)
    given: tuple[str, ...] = ()
    options: str = field(default="", compare=False)
    seconds: dict[str, float] = field(default_factory=dict, compare=False)

    @property
    def fused(self) -> int:
        """How many regions were fused; equal ones have one report, and each counts."""
        return sum(region.count for region in self.regions)

    @property
    def left(self) -> int:
        """How many regions were found and are left as written: refused, or failed inside onepass."""
        return len(self.refusals) + len(self.failures)

    @property
    def kernels(self) -> tuple[KernelReport, ...]:
        return tuple(kernel for region in self.regions for kernel in region.kernels)

    @property
    def derivation(self) -> Steps:
        steps = (step for region in self.regions for step in region.derivation)
        return Steps(steps, tuple(c for region in self.regions for c in region.certificates))

    @property
    def passes(self) -> tuple[int, int]:
        """The largest number of passes over one dim, before and after."""
        before, after = (max((r.passes[k] for r in self.regions), default=0) for k in (0, 1))
        return before, after

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

    @property
    def laws(self) -> tuple[str, ...]:
        """What became of each law that was given, in all regions: a sentence for each."""
        return tuple(law_lines(self))

    @property
    def answers(self) -> tuple[Answer, ...]:
        """Is it fused, why not, how much faster, what runs on my GPU: each with its answer."""
        return answers(self)

    def __str__(self) -> str:
        return self.text()

    def text(self, verbose: bool = False) -> str:
        """The text, which begins with the four answers. verbose: also how the engine came to its form: the search, the
        cache, the check of the plan, settings of kernels.
        """
        return "\n".join(report_lines(self, verbose))

    def __repr__(self) -> str:
        return f"<Report: {headline(self)}>"

    def _repr_html_(self) -> str:
        return notebook_cell(self)

    def json(self) -> str:
        """Everything as JSON text."""
        plain = replace(self, regions=tuple(replace(region, data=None) for region in self.regions))
        data = asdict(plain) | {"passes": self.passes, "bytes": self.bytes}
        for written, region in zip(data["regions"], self.regions, strict=True):
            written["proof"] = str(region.derivation)
        data |= {"answers": [asdict(answer) for answer in self.answers]}
        data |= {"assumptions": self.assumptions, "trusted": self.trusted, "laws": self.laws}
        return json.dumps(data, indent=1, default=str)

    def certificate(self) -> str:
        """The certificates of every result and of every derivative, as the text that `python -m onepass verify` reads.
        """
        regions = [{"at": list(region.places), **c} for region in self.regions for c in region.every_certificate]
        return json.dumps({"onepass certificate": CERTIFICATE_FORMAT, "regions": regions})

    def save(self, path: str | PathLike) -> Path:
        """Writes one self-contained page of HTML and returns its path. Raises InputError for what is no path."""
        if not isinstance(path, str | PathLike):
            raise InputError(f'save writes a page to a path, a str or an os.PathLike as "out.html", not {path!r}')
        from ..page.page import page  # draws masks by torch, which reading a record does not need

        path = Path(path)
        path.write_text(page(self), encoding="utf-8")
        return path


# Records of this process ----------------------------------------------------------------------------------------------

MAX_REPORTS_KEPT = 256  # in this process, the latest
SEEN_AT_RUN_TIME = ("ran", "training_ran", "backward_ran", "forward_mode", "forward_mode_ran")  # fields of a report
_SECONDS: dict[str, dict[str, float]] = registered({}, "reports")  # of the first runs of regions, by key
_REPORTS: OrderedDict[int, Report] = registered(OrderedDict(), "reports")
_ATTACHED: OrderedDict[str, RegionReport] = registered(OrderedDict(), "reports")


def record(report: Report) -> None:
    """Keeps a graph's report; the backend and the pass call it."""
    _REPORTS[len(_REPORTS) + 1 if not _REPORTS else next(reversed(_REPORTS)) + 1] = report
    for region in report.regions:
        attach(region)
    while len(_REPORTS) > MAX_REPORTS_KEPT:
        _forget(_REPORTS.popitem(last=False)[1])


def _forget(report: Report) -> None:
    """Drops the report's regions, unless another report has them. `reports` takes a region of no report for cached."""
    kept = {region.key for other in _REPORTS.values() for region in other.regions}
    for region in report.regions:
        if region.key not in kept:
            _ATTACHED.pop(region.key, None)
            _SECONDS.pop(region.key, None)


def attach(region: RegionReport) -> None:
    """Keeps a region's report under its key, with an older one's notes; the operator calls it when it first runs."""
    old = _ATTACHED.get(region.key, region)
    notes = tuple(dict.fromkeys((*old.notes, *region.notes)))
    seen = {name: getattr(region, name) or getattr(old, name) for name in SEEN_AT_RUN_TIME}
    keep_latest(_ATTACHED, region.key, replace(region, notes=notes, **seen), MAX_REPORTS_KEPT)


def note(key: str, sentence: str) -> None:
    """Adds what was seen at run time to a region's report."""
    region = _ATTACHED.get(key)
    if region is not None and sentence not in region.notes:
        attach(replace(region, notes=(*region.notes, sentence)))


def ran(key: str, who: str) -> None:
    """Says who ran a region; the operator calls it when that changes."""
    _saw(key, ran=who)


def ran_in_training(key: str, who: str) -> None:
    """Says who ran a region's forward with what its backward reads; the operator calls it when that changes."""
    _saw(key, training_ran=who)


def ran_backward(key: str, who: str) -> None:
    """Says who ran a region's backward; the operator calls it when that changes."""
    _saw(key, backward_ran=who)


def ran_forward_mode(key: str, who: str) -> None:
    """Says who ran a region's results with their tangents; the operator calls it when that changes."""
    _saw(key, forward_mode_ran=who)


def found_forward_mode(key: str, what: str) -> None:
    """Says what became of a region's forward mode; the operator calls it when a new kind of call comes."""
    _saw(key, forward_mode=what)


def seconds_of(key: str) -> dict[str, float]:
    """Where the stages of a region's first runs add their seconds."""
    return _SECONDS.setdefault(key, {})


def _saw(key: str, **fields: Any) -> None:
    region = _ATTACHED.get(key)
    if region is not None and any(getattr(region, name) != value for name, value in fields.items()):
        _ATTACHED[key] = replace(region, **fields)


def reports(*unknown: object) -> tuple[Report, ...]:
    """The newest 256 reports of this process, oldest first; programs out of a compiler's cache are in one last.

    Raises InputError for an argument, as it has none.

    >>> import onepass, torch
    >>> def attend(q, k, v):
    ...     return torch.softmax(q @ k.mT / 8, -1) @ v
    >>> inputs = [torch.randn(2, 4, 32, 64) for _ in range(3)]
    >>> result = onepass.compile(attend, inner="eager")(*inputs)
    >>> onepass.reports()[-1].fused
    1
    """
    if unknown:
        raise InputError(f"reports() takes no argument, and got {unknown[0]!r}: reports()[-1] is the newest one")
    kept = [as_seen(report) for report in _REPORTS.values()]
    seen = {region.key for report in kept for region in report.regions}
    cached = tuple(region for key, region in _ATTACHED.items() if key not in seen)
    return (*kept, Report(cached, title="programs found in a compiler's cache")) if cached else tuple(kept)


def as_seen(report: Report) -> Report:
    """The report with what was seen at run time since it was made."""
    return replace(report, regions=tuple(map(_with_notes, report.regions)), seconds=dict(report.seconds))


def _with_notes(region: RegionReport) -> RegionReport:
    known = _ATTACHED.get(region.key)
    if known is None:
        return region
    seen = {name: getattr(known, name) for name in SEEN_AT_RUN_TIME}
    if region.backward.startswith(DERIVED):  # another graph may have the same region without gradients, or with them
        seen["ran"] = known.training_ran or known.ran
    else:
        seen["backward_ran"] = ""
    return replace(region, notes=known.notes, seconds=dict(_SECONDS.get(region.key, {})), **seen)


def _sum(counts):
    return None if any(c is None for c in counts) else sum(counts)

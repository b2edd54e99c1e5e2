"""What the process is told of each graph that was compiled: the records, torch's logs and traces, a warning, an error.

With TORCH_LOGS=onepass each graph has one line, with TORCH_LOGS=+onepass also each region. TORCH_TRACE gets the report
as an artifact, and a folder its page (page_files.py). A function of which something was found and nothing fused gives
one warning in a process.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from torch._guards import TracingContext
from torch._logging import trace_structured

from ..lowering.source_folder import debug_folder, keep_stage
from ..process_state import registered
from ..wording.text import headline, way_out
from .page_files import write_page
from .records import Report, record
from .requirements import hold

log = logging.getLogger(__name__)
ARTIFACT = "onepass_report"
_RESUMED = re.compile(r"torch_dynamo_resume_in_(.*)_at_\d+")  # Dynamo's name of what follows a graph break
_FUSED: dict[CompiledFunction, bool] = registered({}, "reports")  # of every function: is anything of it fused
_WARNED: set[CompiledFunction] = registered(set(), "reports")


@dataclass(frozen=True)
class CompiledFunction:
    """The function that Dynamo compiles: its name, file and first line; empty where no function is known."""

    name: str = ""
    file: str = ""
    line: int = 0

    def __str__(self) -> str:
        if self.file.replace("\\", "/").endswith("torch/_dynamo/external_utils.py"):  # Dynamo wraps what is torch's own
            return "a module or function of torch"
        return f"{self.name} ({Path(self.file).name}:{self.line})" if self.name else "a graph"


def publish(report: Report, require: str = "nothing") -> None:
    """Keeps the report of a graph, and tells whoever listens. Raises NotFused if it has not what `require` asks for."""
    record(report)
    function, resumed = _compiled_function()
    known = _FUSED.get(function, False)
    _FUSED[function] = known or report.fused > 0
    first = report.refusals[0] if report.refusals else None
    log.info("onepass: %s: %s%s", function, headline(report), f". Way out: {way_out(first)}" if first else "")
    if log.isEnabledFor(logging.DEBUG):
        for line in _each(report):
            log.debug("onepass: %s", line)
    trace_structured(
        "artifact",
        metadata_fn=lambda: {"name": ARTIFACT, "encoding": "string"},
        payload_fn=lambda: report.text(verbose=True),
    )
    keep_stage(f"report of {function}", report.text(verbose=True) if debug_folder() else "")
    write_page(report, str(function))
    hold(report, require, part=bool(report.breaks) or (resumed and known))
    _warn(report, function)


def _compiled_function() -> tuple[CompiledFunction, bool]:
    """The function that is compiled now, and whether this graph of it follows a graph break."""
    context = TracingContext.try_get()
    code = next(iter(context.traced_code or ()), None) if context is not None else None
    if code is None:
        return CompiledFunction(), False
    found = CompiledFunction(code.co_name, code.co_filename, code.co_firstlineno)
    resumed = _RESUMED.fullmatch(code.co_name)
    return (_begun(replace(found, name=resumed[1])), True) if resumed else (found, False)


def _begun(rest: CompiledFunction) -> CompiledFunction:
    """The function whose rest Dynamo compiles: the nearest before it in the file that has its name."""
    same = (f for f in _FUSED if (f.name, f.file) == (rest.name, rest.file) and f.line <= rest.line)
    return max(same, key=lambda f: f.line, default=rest)


def _each(report: Report) -> Iterator[str]:
    """A line for each region and each failure."""
    for region in report.regions:
        kernels = ", ".join(kernel.name for kernel in region.kernels)
        yield f"fused at {', '.join(region.places)}: {kernels}; {region.cache}"
    for refused in report.refusals:
        yield f"left as written at {refused.where}: {refused.reason}"
    for failure in report.failures:
        yield f"failed: {failure}"


def _warn(report: Report, function: CompiledFunction) -> None:
    """Warns where nothing is fused of what was found. A failure has had a warning of its own."""
    if report.fused or not report.refusals or _FUSED.get(function) or function in _WARNED:
        return
    _WARNED.add(function)
    first = report.refusals[0]
    said = f"{first.reason} ({first.where})" if first.file else first.reason
    log.warning("onepass: nothing is fused in %s: %s. Way out: %s", function, said, way_out(first))

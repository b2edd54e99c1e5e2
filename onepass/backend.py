"""The torch.compile backend "onepass": fuses what it can, and hands the graph on to Inductor or runs it as it is.

Found by entry point, so `torch.compile(f, backend="onepass")` needs no import. It never breaks a model: whatever fails
in here leaves the graph as it was, unless strict. Nothing of the process is configured.
"""

from __future__ import annotations

import logging
from dataclasses import replace

import torch
from torch import fx

from .breaks import break_after
from .options import Options
from .report import Report, record

log = logging.getLogger(__name__)


def onepass_backend(gm: fx.GraphModule, example_inputs, *, options=None, mode=None):
    """What Dynamo calls with each graph; `options` and `mode` are torch.compile's. Raises OptionError for bad ones."""
    chosen = Options.read(options)
    record(rewrite_module(gm, chosen))
    if chosen.inner == "eager":
        return gm.forward
    return _inductor(gm, example_inputs, chosen, mode)


def rewrite_module(gm: fx.GraphModule, options: Options, dry: bool = False) -> Report:
    """Replaces the regions of a Dynamo graph in place and recompiles it. Raises only if strict."""
    from .replace import rewrite

    report = rewrite(gm.graph, options, dry=dry, sources=dry)
    if report.regions and not dry:
        gm.recompile()
    ends = break_after(gm)
    return report if ends is None else replace(report, breaks=(ends,))


def _inductor(gm, example_inputs, options: Options, mode):
    from torch._inductor.compile_fx import compile_fx

    patches = dict(options.inner_options)
    if mode and mode != "default":
        patches = {**torch._inductor.list_mode_options(mode), **patches}
    return compile_fx(gm, example_inputs, config_patches=patches or None)


class Recorder:
    """A backend that only looks: the reports of a function's graphs, while the function runs as written."""

    def __init__(self, options: Options):
        self.options = options
        self.reports: list[Report] = []

    def __call__(self, gm: fx.GraphModule, example_inputs, **_):
        self.reports.append(rewrite_module(gm, self.options, dry=True))
        return gm.forward

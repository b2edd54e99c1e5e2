"""`explain`: what onepass would do with a function, without doing it.

Dynamo captures the function as for a compiled call; each graph is looked at and runs as written. Called by users and by
the command line.
"""

from __future__ import annotations

from dataclasses import replace

from .report import Report


def explain(function, *inputs, rules=(), options=None, **keywords) -> Report:
    """What onepass would do with function(*inputs, **keywords), graph by graph; nothing is replaced.

    rules: the user's, as in `options={"rules": rules}`; options: the backend's. The function runs once, as written.
    Raises OptionError for unknown options, and whatever the function raises.
    """
    import torch
    from torch._dynamo import config

    from .backend import Recorder
    from .breaks import breaks_of, counted
    from .options import Options

    recorder = Recorder(Options.read({"rules": rules, **(options or {})}))
    function = getattr(function, "_orig_mod", getattr(function, "_torchdynamo_orig_callable", function))
    limits = {n: 1 << 20 for n in ("recompile_limit", "accumulated_recompile_limit") if hasattr(config, n)}
    with config.patch(limits), counted() as reasons:
        torch.compile(function, backend=recorder)(*inputs, **keywords)
    report = merged(recorder.reports)
    return replace(report, breaks=breaks_of(function, report.graphs, report.breaks, reasons))


def merged(graphs) -> Report:
    """The reports of several graphs as one."""
    graphs = tuple(graphs)
    regions = tuple(region for report in graphs for region in report.regions)
    refusals = tuple(dict.fromkeys(r for report in graphs for r in report.refusals))
    failures = tuple(dict.fromkeys(f for report in graphs for f in report.failures))
    breaks = tuple(dict.fromkeys(b for report in graphs for b in report.breaks))
    return Report(regions, refusals, failures, len(graphs), breaks)

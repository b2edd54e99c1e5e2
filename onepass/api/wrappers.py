"""Decides whether the C++ code that Inductor writes around a graph can call onepass's operation, which is Python.

A C++ program without Python may load a package of AOTInductor, and the operation does not exist there. With
`GraphPass(aot="python")` a package calls the operation, by a name that says what to import. Inductor's option
cpp_wrapper cannot write a string argument of an operation.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import fx
from torch._inductor import config
from torch._inductor.virtualized import V

from .. import messages
from ..report.records import Refused, Report
from ..runtime import operator  # noqa: F401  (registers the operation)

AOT = ("anywhere", "python")


def left_as_written(options: Mapping[str, object], aot: str = AOT[0]) -> Report | None:
    """The report for a graph whose wrapper cannot call the operation; None if it can. `options`: of Inductor."""
    if V.aot_compilation:
        return None if aot == "python" else Report(refusals=(Refused.of(messages.PACKAGED),))
    if options.get("cpp_wrapper", config.cpp_wrapper):
        return Report(refusals=(Refused.of(messages.WRAPPED),))
    return None


def name_for_packages(graph: fx.Graph) -> None:
    """Renames calls of the operation in a package, so that loading it reports a missing import by name."""
    region = torch.ops.onepass.region
    for node in graph.nodes if V.aot_compilation else ():
        if node.target is region.default:
            node.target = region.import_onepass_operator

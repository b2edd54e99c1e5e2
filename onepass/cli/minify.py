"""`minify FILE:FUNC`: writes the smallest program that still fails, or whose numbers still differ, as a Python file.

The function's ATen graph is cut by torch's own minifier: calls at the end are dropped, and values become inputs, as
long as the rest still fails. The file runs alone and can go into a report of a bug.
"""

from __future__ import annotations

import contextlib
import io
import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import indent

import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from ..errors import OnepassError
from .bisect import EagerComparison
from .inputs import InputChoice, TargetFunction
from .target import options_of, target

MISUSED = 2
TEXT = '''"""The smallest program that still fails; written by `python -m onepass minify {target}`."""

import torch
from torch import device, inf, nan  # what the lines below may name


class Program(torch.nn.Module):
{code}


program = Program()


def example_inputs():
    generator = torch.Generator().manual_seed(0)
    return ({inputs},)
'''
SEEDED = "torch.randn({sizes}, generator=generator).to({dtype})"
WHOLE = "torch.randint(0, 2, {sizes}, generator=generator).to({dtype})"


def smallest(
    called: TargetFunction, options: Mapping[str, object]
) -> tuple[fx.GraphModule, Sequence[torch.Tensor]] | None:
    """The smallest graph that still differs, with its inputs; None where the whole one does not."""
    from functorch.compile import minifier

    flat = list(called.inputs) + list(called.keywords.values())
    names = list(called.keywords)

    def by_position(*values: object) -> object:
        count = len(called.inputs)
        return called.function(*values[:count], **dict(zip(names, values[count:])))

    with torch.no_grad():
        graph = make_fx(by_position, pre_dispatch=True)(*flat)

    def fails(module: fx.GraphModule, inputs: Sequence[torch.Tensor]) -> bool:
        try:
            comparison = EagerComparison(TargetFunction(module, tuple(inputs)))
        except Exception:  # what eager cannot run is no smaller program
            return False
        return comparison.outcome({**options, "inner": "eager", "strict": True}).differs

    if not fails(graph, flat):
        return None
    with contextlib.redirect_stderr(io.StringIO()):
        return minifier(graph, flat, fails, dump_state=lambda *_: None, skip_sanity=True)


def text_of(graph: fx.GraphModule, inputs: Sequence[torch.Tensor], name: str) -> str:
    """The program as a file."""
    made = [
        (SEEDED if x.is_floating_point() else WHOLE).format(sizes=tuple(x.shape), dtype=x.dtype) for x in inputs
    ]
    code = graph.code.strip()
    return TEXT.format(target=name, code=indent(code, "    "), inputs=", ".join(made))


def run(chosen: Namespace) -> int:
    """Writes the file. Returns 0 if there is no difference, 1 if there is one."""
    try:
        options = options_of(chosen)
        called = target(chosen.target, InputChoice(tuple(chosen.shape), chosen.dtype, chosen.device))
        print(f"onepass minify: runs {chosen.target} and smaller programs", file=sys.stderr)
        found = smallest(called, options)
    except OnepassError as error:
        print(f"onepass minify: {error}", file=sys.stderr)
        return MISUSED
    if found is None:
        print("no difference was found with these inputs, so there is nothing to make smaller")
        return 0
    graph, inputs = found
    Path(chosen.out).write_text(text_of(graph, inputs, chosen.target), encoding="utf-8")
    calls = sum(node.op.startswith("call") for node in graph.graph.nodes)
    print(f"written: {chosen.out}, {calls} calls; `python -m onepass bisect {chosen.out}:program` looks further")
    return 1

"""Many models, unchanged, as a table: `python -m tests.models.survey [NAME ...]` prints the table.

For each: how many attention calls are fused of how many, whether the answer is as near to float64 as eager's, and the
reasons for what stays. A model that the installed library does not have, or that eager cannot run, says so.
On a GPU: `--device cuda --dtype bfloat16 --widths 4 --length 300 --workers 14`, with the kernels' executors told.
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import os
import re
import sys
import tempfile
import warnings
from concurrent.futures import ProcessPoolExecutor
from functools import partial

import torch

import onepass
from onepass import process_state
from tests.models.more import MORE
from tests.models.own import LAYERS, OWN
from tests.models.records import MODELS, SCALE, Model
from tests.models.test_models import answers, as_near
from tests.models.wide import WIDE
from tests.support.waste import wasted_since_forgotten

ALL = (*MODELS, *OWN, LAYERS, *MORE, *WIDE)
HEAD = """# Models

Written by `python -m tests.models.survey`: models of Hugging Face `transformers` with eager attention, small random
configurations, float32, one batch with padding, on a CPU; and three written in `tests/models/own.py`. Nothing of their
code is changed. *Fused* counts attention calls in one forward; *right* compares with float64 by the rule of
`tests/models/test_models.py` (an error of four times eager's own at most). *Graphs*: the number of graphs that Dynamo
split the model into.

| model | fused | right | left as written |
|---|---|---|---|
"""


def line(name: str, chosen: argparse.Namespace) -> str:
    """One row of the table."""
    (model,) = [x for x in ALL if x.name == name]
    SCALE.widths, SCALE.length, SCALE.attention = chosen.widths, chosen.length, chosen.attention
    torch._dynamo.reset()
    process_state.forget()
    torch.manual_seed(0)
    try:
        built, inputs = _placed(model, chosen.device, getattr(torch, chosen.dtype))
        with torch.no_grad():
            built(**inputs)
    except Exception as error:
        return f"| {model} | - | - | eager does not run: {_first(error)} |"
    try:
        exact, eager, fused, graphs = answers(built, inputs)
    except Exception as error:
        return f"| {model} | - | {_whose(built, inputs)} | {_first(error)} |"
    found = onepass.reports()
    count = sum(region.count for r in found for region in r.regions)
    broken = [f"{len(graphs)} graphs"] if len(graphs) > 1 else []
    reasons = dict.fromkeys(re.sub(r" at [^ ]+:\d+", "", x.reason) for r in found for x in r.refusals)
    failures = [f for r in found for f in r.failures] + [n for r in found for x in r.regions for n in x.notes]
    failures += wasted_since_forgotten()
    right = "yes" if as_near(fused, eager, exact) else "WRONG"
    ran = dict.fromkeys(region.ran for r in found for region in r.regions if chosen.device != "cpu")
    rest = "; ".join([*ran, *broken, *reasons, *failures])
    return f"| {model} | {count} of {model.attentions} | {right} | {rest} |"


def _placed(model: Model, device: str, dtype: torch.dtype) -> tuple[torch.nn.Module, dict]:
    """The module and its inputs there, floating-point tensors in `dtype`."""
    moved = lambda x: x.to(device, dtype if x.is_floating_point() else None) if torch.is_tensor(x) else x
    return model.build().to(device, dtype), {name: moved(x) for name, x in model.inputs().items()}


def _whose(built, inputs) -> str:
    """Whether torch.compile fails on the model without onepass too."""
    torch._dynamo.reset()
    try:
        with torch.no_grad():
            torch.compile(built, backend="eager")(**inputs)
    except Exception:
        return "not compiled by torch"
    return "crash"


def _first(error: Exception) -> str:
    text = (str(error).strip().splitlines() or [""])[0]
    return f"{type(error).__name__}: {text[:120]}"


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.models.survey", description=__doc__)
    parser.add_argument("names", nargs="*", help="models; all if none is named")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32", choices=["float32", "float16", "bfloat16"])
    parser.add_argument("--widths", type=int, default=1, help="how much wider than their records models are built")
    parser.add_argument("--length", type=int, default=SCALE.length, help="tokens of an input")
    parser.add_argument("--attention", default="eager", help="what the library is asked for: eager, or sdpa")
    parser.add_argument("--workers", type=int, default=1, help="models at a time")
    return parser.parse_args(arguments)


def _quiet() -> None:
    os.environ["ONEPASS_CACHE"] = tempfile.mkdtemp()
    logging.disable(logging.WARNING)
    warnings.filterwarnings("ignore")


def main(arguments: list[str]) -> int:
    chosen = _options(arguments)
    if not chosen.names:
        print(HEAD, end="", flush=True)
    names = [model.name for model in ALL if not chosen.names or model.name in chosen.names]
    lines = []
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(chosen.workers, context, _quiet) as pool:
        for each in pool.map(partial(line, chosen=chosen), names):
            lines.append(each)
            print(each, flush=True)
    return int(any("| WRONG |" in each or "| crash |" in each for each in lines))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

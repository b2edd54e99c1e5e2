"""Many models, unchanged, as a table: `python -m tests.survey_models [NAME ...]` prints the table.

For each: how many attention calls are fused of how many, whether the answer is as near to float64 as eager's, and the
reasons for what stays. A model that the installed library does not have, or that eager cannot run, says so.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import tempfile
import warnings

import torch

import onepass
from onepass import operator, report
from tests.models import MODELS, Model
from tests.models_more import MORE
from tests.models_wide import WIDE
from tests.own_models import LAYERS, OWN
from tests.test_models import answers, as_near
from tests.waste import wasted_since_forgotten

HEAD = """# Models

Written by `python -m tests.survey_models`: models of Hugging Face `transformers` with eager attention, small random
configurations, float32, one batch with padding, on a CPU; and three written in `tests/own_models.py`. Nothing of their
code is changed. *Fused* counts attention calls in one forward; *right* compares with float64 by the rule of
`tests/test_models.py` (an error of four times eager's own at most). *Graphs*: Dynamo broke the model into so many.

| model | fused | right | left as written |
|---|---|---|---|
"""


def line(model: Model) -> str:
    """One row of the table."""
    torch._dynamo.reset()
    report.forget()
    operator.forget()
    torch.manual_seed(0)
    try:
        built, inputs = model.build(), model.inputs()
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
    return f"| {model} | {count} of {model.attentions} | {right} | {'; '.join([*broken, *reasons, *failures])} |"


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


def main(names: list[str]) -> int:
    os.environ["ONEPASS_CACHE"] = tempfile.mkdtemp()
    logging.disable(logging.WARNING)
    warnings.filterwarnings("ignore")
    if not names:
        print(HEAD, end="", flush=True)
    lines = []
    for model in (*MODELS, *OWN, LAYERS, *MORE, *WIDE):
        if not names or model.name in names:
            lines.append(line(model))
            print(lines[-1], flush=True)
    return int(any("| WRONG |" in each or "| crash |" in each for each in lines))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

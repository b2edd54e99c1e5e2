"""A derivation from code to kernel, docs/derivation.md: `make derivation`, or `python -m tests.docs.derivation`.

Every text of the page is what onepass writes for the function below; nothing is edited by hand.
"""

from __future__ import annotations

from pathlib import Path
from textwrap import wrap

import torch

import onepass
from onepass.report.records import RegionReport
from onepass.wording.loop_nest import loop_nest

PAGE = Path(__file__).parents[2] / "docs" / "derivation.md"
CODE = """import torch
import onepass


def attention(q, k, v):
    return torch.softmax(q @ k.mT / 8, dim=-1) @ v


report = onepass.explain(attention, *[torch.randn(1, 4, 256, 64) for _ in range(3)])
(region,) = report.regions
"""
HEAD = """# A derivation, from code to kernel

Softmax attention, as it is written in plain PyTorch, step by step until it is one kernel. Each text on this page is
what onepass itself writes; `make derivation` generates the page.

"""
STEPS = (
    (
        "1. The code",
        "Three passes over the keys are written here: the softmax needs the largest score of a row, then the sum "
        "of the exponentials, and the product with the values is the third. The last line takes the report's one "
        "region.",
    ),
    (
        "2. The captured term",
        "Dynamo's graph becomes one term for an element of the result. `i` numbers the queries and `j` the keys; "
        "`d` and `e` are within a head. A name such as `t0` stands for a term that occurs more than once. It is "
        "printed by `print(region.captured)`.",
    ),
    (
        "3. The steps",
        "The search has found a cheaper form among all equal ones. Then this chain is derived again, without the "
        "e-graph, and each step is checked to be an instance of a law. The first steps bring the term into its "
        "normal form. Step by step, the division leaves the sum, and the two sums that remain become sums of "
        "pairs `⟨s, w⟩`, which need no largest score beforehand. It is printed by `print(region.derivation)`. "
        "[Every law](laws.md) has its verdict.",
    ),
    (
        "4. The extracted form",
        "One pass: both sums run over `j` at the same time, and they share their scale.",
    ),
    (
        "5. The plan",
        "The form becomes loops, tiles and accumulators. It is data, not text, and is read back: from the loops, "
        "the term that they compute is computed again and compared with the one that was asked for. "
        "`print(loop_nest(kernel))`, with `loop_nest` of `onepass.wording.loop_nest`, prints it for each kernel of "
        "`region.data.plan.kernels`. With `ONEPASS_PRINT_PLAN_PASSES=1` in the environment, planning prints it after "
        "each pass.",
    ),
    (
        "6. The kernel",
        "The plan is emitted as Triton. The loop is there twice: for whole tiles of keys, and for the last one, "
        "whose rest is masked. Exponentials are powers of two: 0.125 / log 2 is 0.1803. "
        "`region.kernels[0].source` is the file.",
    ),
)


def region() -> RegionReport:
    """The report of the code's one region."""
    names: dict = {}
    exec(CODE, names)
    return names["region"]


def texts(found: RegionReport) -> tuple[tuple[str, str], ...]:
    """The language and the text of each step."""
    kernel = Path(found.kernels[0].source).read_text(encoding="utf-8")
    return (
        ("python", CODE),
        ("text", found.captured),
        ("text", str(found.derivation)),
        ("text", found.extracted),
        ("text", "\n".join(map(loop_nest, found.data.plan.kernels))),
        ("triton", kernel),
    )


def page(found: RegionReport) -> str:
    """The text of the page."""
    parts = [HEAD]
    for (title, said), (language, text) in zip(STEPS, texts(found), strict=True):
        said = "\n".join(wrap(said, 118, break_long_words=False, break_on_hyphens=False))
        parts.append(f"## {title}\n\n{said}\n\n```{language}\n{text.strip()}\n```\n\n")
    return "".join(parts).rstrip() + "\n"


if __name__ == "__main__":
    torch.manual_seed(0)
    PAGE.write_text(page(region()), encoding="utf-8")
    print(f"written: docs/{PAGE.name}, by onepass {onepass.__version__}")

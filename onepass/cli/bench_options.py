"""The options of the command `bench`, apart from what it runs: the command line reads them without torch.

Every option has a default. Example: `--suite peers --out rows.csv`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from .values import count, pattern, seconds

GRADIENTS = ("attention", "all")
SUITES = ("peers", "variants", "beyond", "flashlight", "decode")


def add_options(parser: argparse.ArgumentParser) -> None:
    """The command's options; without --suite it prints the CPU figures of a checkout."""
    text = "which suite, or all of them (without: the CPU figures of a checkout)"
    parser.add_argument("--suite", choices=(*SUITES, "all"), help=text)
    parser.add_argument("--out", type=Path, help="the CSV file that gets the rows; one that exists is gone on with")
    parser.add_argument("--plot", type=Path, metavar="PNG", help="also plot the file's rows, one picture a suite")
    parser.add_argument("--variants", type=pattern, default="", help="a regular expression on the variants' names")
    parser.add_argument("--shapes", type=pattern, default="", help="the same on shapes such as b4h16s4096d128")
    names = "a regular expression on the contestants' names: '^(?!eager)' leaves out the slow one"
    parser.add_argument("--only", type=pattern, default="", help=names)
    gradients = "time the backward alone, of queries, keys and values, or of all floating-point arguments"
    parser.add_argument("--backward", choices=GRADIENTS, help=gradients)
    parser.add_argument("--rounds", type=count, default=5, help="rounds in which the contestants take turns (5)")
    text = "start no further problem after that time"
    parser.add_argument("--seconds", type=seconds, default=float("inf"), help=text)
    parser.add_argument("--scale", choices=("gpu", "cpu", "tiny"), help="how large (gpu with a GPU, else cpu)")
    parser.add_argument("--dtype", choices=("bfloat16", "float16", "float32"), help="bfloat16 with a GPU, else float32")
    parser.add_argument("--inner", choices=("inductor", "eager"), default="inductor", help="onepass's option inner")
    parser.add_argument(
        "--libraries", action="store_true", help="let torch's own kernels run what onepass fused, if faster"
    )
    parser.add_argument("--executor", default="auto", help="onepass's option executor")

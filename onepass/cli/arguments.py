"""The arguments of each command: a table of functions that add them to a parser.

Every value is read by the parser, so that a wrong one is refused before anything runs. Example:
`explain model.py:attention --shape 1,8,1024,64 --dtype bfloat16`.
"""

from __future__ import annotations

from .bench_options import add_options
from .values import DTYPES, CommandParser, count, shape

FUNC = "a function or a module (an instance) of the file; its inputs come from example_inputs() beside it"


def _explain(parser: CommandParser) -> None:
    _add_inputs(parser)
    parser.add_argument("--dynamic", action="store_true", help="sizes are symbols, as with torch.compile(dynamic=True)")
    text = "also how onepass came to it: the search, the cache, the check of the plan, settings of kernels"
    parser.add_argument("--verbose", action="store_true", help=text)
    parser.add_argument("--json", action="store_true", help="print JSON")
    text = "also the gradients in full: their forms, laws, saved values and kernels"
    parser.add_argument("--gradients", action="store_true", help=text)
    parser.add_argument("--tangents", action="store_true", help="also the tangents in full")
    parser.add_argument("--html", metavar="PATH", help="also write a page")
    parser.add_argument("--certificate", metavar="PATH", help="also write what `verify` checks")


def _verify(parser: CommandParser) -> None:
    parser.add_argument("certificate", metavar="FILE", help="what explain --certificate wrote")


def _tune(parser: CommandParser) -> None:
    parser.add_argument("target", metavar="FILE:FUNC", help=FUNC)
    parser.add_argument("--trials", type=count, default=30, help="settings to try for each region (30)")


def _rules(parser: CommandParser) -> None:
    text = "only laws whose line has these words, as exp, mask or rescale"
    parser.add_argument("--filter", metavar="WORD", action="append", default=[], help=text)
    parser.add_argument("--installed", action="store_true", help="also those of other packages, checked")


def _add_inputs(parser: CommandParser) -> None:
    """A function, its inputs, the options and the rules."""
    parser.add_argument("target", metavar="FILE:FUNC", help=FUNC)
    text = "make an input of this shape, as 1,8,1024,64 or mask=1024,1024:bool; may be given again"
    parser.add_argument("--shape", metavar="[NAME=]SIZES[:DTYPE]", type=shape, action="append", default=[], help=text)
    parser.add_argument("--dtype", choices=DTYPES, default="", help="the dtype of floating inputs and parameters")
    text = "where inputs and parameters are, as cpu or cuda; for explain also a GPU that is not here, as h100"
    parser.add_argument("--device", default="", help=text)
    text = "an option of the backend, as fuse_loads=always or executor=triton; may be given again"
    parser.add_argument("--option", metavar="NAME=VALUE", action="append", default=[], help=text)
    text = "use the rules of this Python file, too; each is checked first; may be given again"
    parser.add_argument("--rules", metavar="FILE", action="append", default=[], help=text)


def _bisect(parser: CommandParser) -> None:
    _add_inputs(parser)
    text = "the difference to look for: numbers (the default), or speed"
    parser.add_argument("--of", choices=("numbers", "speed"), default="numbers", help=text)


def _minify(parser: CommandParser) -> None:
    _add_inputs(parser)
    parser.add_argument("--out", metavar="PATH", default="minified.py", help="the file to write (minified.py)")


def _prove(parser: CommandParser) -> None:
    parser.add_argument("--quick", action="store_true", help="the rules only, no mutants of them")


def _demo(parser: CommandParser) -> None:
    parser.add_argument("--size", type=count, default=4096, help="the length for time and memory (4096)")


def _cache(parser: CommandParser) -> None:
    text = "list: every entry, the latest first; size (the default): how much; clear: remove all"
    parser.add_argument("action", nargs="?", choices=("list", "size", "clear"), default="size", help=text)


ARGUMENTS = {
    "explain": _explain, "verify": _verify, "tune": _tune, "rules": _rules, "prove": _prove, "demo": _demo,
    "bisect": _bisect, "minify": _minify, "bench": add_options, "cache": _cache,
}  # fmt: skip

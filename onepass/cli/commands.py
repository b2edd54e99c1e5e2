"""The command line: `python -m onepass COMMAND`. The table COMMANDS at the end of this file lists the commands.

Each command is one function that calls the part that does the work. The exit status is 0 for success, 1 if something
failed or is wrong, and 2 if the command cannot run as it was called.
"""

from __future__ import annotations

import atexit
import importlib
import os
import runpy
import shutil
import sys
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from textwrap import fill
from typing import Any, NoReturn

from .. import __version__
from ..garbage import rare_collections
from ..wording.report_text import QUESTION
from .arguments import ARGUMENTS
from .values import CommandParser

MISUSED = 2
INDENT_OF_A_TEXT = 14  # of a line of a region: two spaces, then its label
MIN_WIDTH = 60  # of a terminal
INTERRUPTED = 130  # as a shell says of Ctrl-C
UNNAMED = """not found by name: its entry point comes with an installed package (`pip install -e .` in a checkout);
          without one write `import onepass` and backend=onepass.onepass_backend"""


def run() -> NoReturn:
    """Entry point of the `onepass` script and of `python -m onepass`: a command, then the end of the process.

    Where no thread is left, nothing is freed first: for what torch has made that takes a second.
    """
    status = main()
    if len(sys._current_frames()) > 1:
        sys.exit(status)
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def main(arguments: list[str] | None = None) -> int:
    """Runs a command and gives its exit status."""
    parser, commands = _parsers()
    chosen, unknown = parser.parse_known_args(arguments)
    if chosen.run is None:
        if unknown:
            parser.refuse_unknown(unknown)
        parser.print_help(sys.stderr)
        return MISUSED
    commands[chosen.command].refuse_unknown(unknown)
    try:
        with rare_collections():
            status = chosen.run(chosen) or 0
        sys.stdout.flush()
    except KeyboardInterrupt:
        print(f"\nonepass {chosen.command}: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # the reader, such as `head`, has closed the pipe; the rest of the output is dropped
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return status


def _parsers() -> tuple[CommandParser, dict[str, CommandParser]]:
    """The parser of the command line, and those of the commands by name."""
    parser = CommandParser("onepass", description="attention written in plain PyTorch becomes fused kernels")
    parser.add_argument("--version", action="version", version=f"onepass {__version__}")
    parser.set_defaults(run=None)
    commands = parser.add_subparsers(metavar="COMMAND")
    for name, run, text in COMMANDS:
        command = commands.add_parser(name, help=text, description=text)
        command.set_defaults(run=run, command=name)
        ARGUMENTS.get(name, lambda command: None)(command)
    return parser, commands.choices


def _demo(chosen) -> int:
    from .demo import demo

    return demo(chosen.size)


def _explain(chosen) -> int:
    from ..api.explain import explain, refuse_call
    from ..compiler.options import Options
    from ..errors import OptionError
    from .inputs import InputChoice, from_afar
    from .target import TargetError, error_line, options_of, target

    device, afar = from_afar(chosen.device)
    try:
        options = options_of(chosen)
        Options.read(options)
        called = target(chosen.target, InputChoice(tuple(chosen.shape), chosen.dtype, device))
    except (TargetError, OptionError) as error:
        print(f"onepass explain: {error}", file=sys.stderr)
        return MISUSED
    _print_guessed("explain", called)
    if afar:
        print(f"onepass explain: {afar}", file=sys.stderr)
    try:
        asked: dict[str, Any] = {"options": options, "gradients": chosen.gradients, "tangents": chosen.tangents}
        keywords: dict[str, Any] = {**called.keywords}
        refuse_call(called.function, called.inputs, keywords)
        with _working("running it in eager"):  # first, so that what is the user's error is said as that
            called.function(*called.inputs, **keywords)
        with _working("capturing and searching"), _sizes(chosen.dynamic), _decided(chosen.device if afar else ""):
            report = explain(called.function, *called.inputs, **asked, **keywords)
    except Exception as error:
        path = Path(chosen.target.rpartition(":")[0]).resolve()
        print(f"onepass explain: {chosen.target} fails: {error_line(error, path)}", file=sys.stderr)
        return MISUSED
    print(report.json() if chosen.json else _shown(report.text(chosen.verbose)))
    try:
        _write(report, chosen)
    except OSError as error:
        print(f"onepass explain: cannot write {error.filename}: {error.strerror}", file=sys.stderr)
        return MISUSED
    return 1 if report.failures else 0


def _shown(text: str) -> str:
    """A report for people: files below this folder by relative paths and, on a terminal, lines no wider than it is."""
    text = text.replace(f"{Path.cwd()}{os.sep}", "")
    if not sys.stdout.isatty():
        return text
    width = max(MIN_WIDTH, shutil.get_terminal_size().columns)
    return "\n".join(_folded(line, width) for line in text.splitlines())


def _folded(line: str, width: int) -> str:
    """The line, gone on with below its text where it is too wide."""
    answer = line[:QUESTION].rstrip().endswith("?") or not line[:QUESTION].strip()
    indent = QUESTION if answer else INDENT_OF_A_TEXT if line.startswith("  ") else 0
    return fill(line, width, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False)


def _working(what: str) -> AbstractContextManager:
    """Says on a terminal what takes its time."""
    if not sys.stderr.isatty():
        return nullcontext()
    from rich.console import Console

    return Console(stderr=True).status(what)


def _sizes(dynamic: bool) -> AbstractContextManager:
    """Sizes as symbols from the first call on, as by torch.compile(dynamic=True); otherwise as torch chooses."""
    from torch._dynamo import config

    return config.patch(assume_static_by_default=False) if dynamic else nullcontext()


def _decided(gpu: str) -> AbstractContextManager:
    """Fusion decides as on a GPU that is not here; as for the tensors' own device where that is ""."""
    from ..fusion.estimates import estimated_for
    from .inputs import CAPABILITIES

    return estimated_for(CAPABILITIES[gpu.lower()]) if gpu else nullcontext()


def _print_guessed(command: str, called) -> None:
    """Prints which inputs were guessed."""
    from .target import HINT

    if called.guessed:
        print(f"onepass {command}: assumed {called.guessed}; to give others, {HINT}", file=sys.stderr)


def _write(report, chosen) -> None:
    if chosen.html:
        print(f"\nwritten: {replace(report, title=chosen.target).save(chosen.html)}", file=sys.stderr)
    if chosen.certificate:
        from ..compiler.certificate_files import write

        print(f"written: {write(report, chosen.certificate)}", file=sys.stderr)


def _tune(chosen) -> int:
    """Searches the fastest settings of each region on this GPU, and keeps them in the cache."""
    import torch

    from .target import TargetError, target

    if not torch.cuda.is_available():
        print("onepass tune: there is no GPU here; on a CPU fused forms have nothing to tune", file=sys.stderr)
        return MISUSED
    if find_spec("sklearn") is None:
        print("onepass tune needs scikit-learn, which models trials: pip install scikit-learn", file=sys.stderr)
        return MISUSED
    try:
        called = target(chosen.target)
    except TargetError as error:
        print(f"onepass tune: {error}", file=sys.stderr)
        return MISUSED
    _print_guessed("tune", called)
    from ..tune.autotune import tune_function

    move = lambda x: x.cuda() if isinstance(x, torch.Tensor) else x
    inputs, keywords = tuple(map(move, called.inputs)), {n: move(x) for n, x in called.keywords.items()}
    status = 1
    for call, history in tune_function(called.function, inputs, keywords, chosen.trials):
        best, lost = history.best, sum(t.status != "ok" for t in history.trials)
        result = "nothing right was found" if best is None else f"{best.time * 1e3:.4f} ms with {best.point}"
        print(f"region {call.found.key[:12]}: {result}; {len(history.trials)} trials, {lost} infeasible")
        status = 0 if best is not None else status
    return status


def _verify(chosen) -> int:
    """Checks a certificate, without torch and without the search."""
    from ..compiler.certificate_files import CertificateFileError, verify
    from ..egraph.derivation.certificate import CertificateError

    try:
        checked = verify(chosen.certificate)
    except OSError as error:
        print(f"onepass verify: cannot read {chosen.certificate}: {error.strerror}", file=sys.stderr)
        return MISUSED
    except CertificateFileError as error:
        print(f"onepass verify: {error}", file=sys.stderr)
        return MISUSED
    except CertificateError as error:
        print(f"onepass verify: {chosen.certificate} proves nothing: {error}", file=sys.stderr)
        return 1
    if not checked:
        print(f"onepass verify: {chosen.certificate} holds no region, so it proves nothing", file=sys.stderr)
        return 1
    print("\n\n".join(map(str, checked)))
    return 0


def _rules(chosen) -> int:
    from ..rules import ALL

    width = max(len(rule.name) for rule in ALL)
    lines = []
    for rule in ALL:
        guards = f"   when {', '.join(map(str, rule.guards))}" if rule.guards else ""
        lines.append(f"{rule.name:{width}}  {rule.law}   [{rule.exact}]{guards}")
    shown = [line for line in lines if all(word.lower() in line.lower() for word in chosen.filter)]
    print("\n".join([*shown, f"{len(shown)} laws" + (f" of {len(ALL)}" if chosen.filter else "")]))
    return _installed_rules() if chosen.installed else 0


def _installed_rules() -> int:
    """Prints the rules of other packages with verdicts. Returns 1 if one is refuted or an entry point is broken."""
    from ..compiler.rule_admission import REFUTED, known
    from ..compiler.rule_plugins import installed
    from ..errors import OptionError

    try:
        shipped = installed()
    except OptionError as error:
        print(f"onepass rules: {error}", file=sys.stderr)
        return 1
    status = 0
    for package, rules in shipped.items():
        print(f"\nof package {package}")
        for rule in rules:
            verdict = known(rule)
            status |= verdict.status == REFUTED
            print(f"{rule.name}  {rule.law}   [{rule.exact}]   {verdict.status}{', trusted' * rule.trusted}")
    return int(status)


def _doctor(chosen) -> int:
    """Prints what is installed and what is missing. Returns 1 if onepass cannot work here."""
    from ..compiler import disk_cache
    from ..tested_versions import summary, untested

    print(f"onepass {__version__} on Python {sys.version.split()[0]}, {sys.platform}")
    missing = [name for name in ("torch", "egglog", "numpy", "sympy", "rich") if not _found(name, "needed")]
    uses = {"triton": "kernels", "ortools": "exact extraction", "z3": "proofs", "hypothesis": "testing"}
    for name, use in uses.items():
        _found(name, f"optional: {use}")
    if not missing:
        _machine()
    print(f"tested    {summary()}")
    for _, sentence in untested():
        print(f"          {sentence}: it may work; in a checkout, `make test PYTHON=python` tries it")
    place = disk_cache.folder()
    probe = "0" * 40
    works = place is not None and disk_cache.write(probe, {"probe": 1}) and disk_cache.read(probe) == {"probe": 1}
    disk_cache.remove(probe)
    print(f"cache     {place or 'switched off'}: {'works' if works else 'keeps nothing'}")
    return 1 if missing else 0


def _found(name: str, use: str) -> bool:
    try:
        module = importlib.import_module(name)
    except ImportError as error:
        print(f"{name:9} missing ({use}): {error}")
        return False
    print(f"{name:9} {getattr(module, '__version__', 'found')}")
    return True


def _machine() -> None:
    import torch

    gpus = [torch.cuda.get_device_name(k) for k in range(torch.cuda.device_count())]
    print(f"gpu       {', '.join(gpus) or 'none: fused forms run tile by tile as torch operations'}")
    named = "onepass" in torch._dynamo.list_backends()
    print(f"backend   {'onepass, found by name' if named else UNNAMED}")


def _prove(chosen) -> int:
    from ..proofs import ledger

    return ledger.main(chosen.quick)


def _bench(chosen) -> int:
    """Runs a suite; without one, the CPU benchmark, which only a checkout has."""
    if chosen.suite:
        from ..bench.run import run

        return run(chosen)
    script = Path(__file__).resolve().parents[2] / "bench" / "cpu.py"
    if not script.is_file():
        print("onepass bench: the CPU figures need a checkout; --suite works everywhere", file=sys.stderr)
        return MISUSED
    runpy.run_path(str(script), run_name="__main__")
    return 0


def _bisect(chosen) -> int:
    """Looks for the law or the part without which a difference goes away."""
    from .bisect import run

    return run(chosen)


def _minify(chosen) -> int:
    """Writes the smallest program that still fails."""
    from .minify import run

    return run(chosen)


def _cache(chosen) -> int:
    """Lists, measures or empties the disk cache."""
    from .cache import run

    return run(chosen)


COMMANDS = (
    ("demo", _demo, "a small GPT-like block, fused: what happened, how right, how fast"),
    ("explain", _explain, "what onepass does with a function of a file, and why"),
    ("verify", _verify, "check a certificate again, without torch and without the search"),
    ("tune", _tune, "look for the fastest settings of a function's kernels on this GPU, and keep them"),
    ("rules", _rules, "the laws: name, law, exactness, guards"),
    ("doctor", _doctor, "what is installed here and what is missing"),
    ("prove", _prove, "prove the laws"),
    ("bench", _bench, "the figures of this machine"),
    ("bisect", _bisect, "find the law, or the part, without which a difference in numbers or speed goes away"),
    ("minify", _minify, "write the smallest program whose numbers still differ, or that still fails"),
    ("cache", _cache, "what is kept on disk: list it, say its size, or clear it"),
)

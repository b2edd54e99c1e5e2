"""`bisect FILE:FUNC`: finds the law, or the part, without which a difference in numbers or in speed goes away.

Numbers are compared with float64: a compiled result is off where its error is several times eager's. First whole parts
are left out (onepass, Inductor, torch's kernels, fusing in front), then each law that the regions used, one at a time.
Example: `python -m onepass bisect model.py:attention --rules my_laws.py`.
"""

from __future__ import annotations

import statistics
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from math import inf
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from torch.utils._pytree import tree_leaves, tree_map

from ..api.backend import onepass_backend
from ..errors import OnepassError
from ..report.records import reports
from .inputs import InputChoice, TargetFunction
from .target import HINT, options_of, target

MISUSED = 2
MOST_OF_EAGERS_ERROR = 8  # a compiled result with a larger multiple of eager's error is off
ROUNDINGS = 64  # and errors below this many roundings of the largest number are none
MAX_SLOWDOWN = 1.2  # times as long as eager
CALLS = 7  # timed, of which the median counts
PARTS: dict[str, dict[str, object]] = {  # a part: the options that leave it out
    "Inductor around": {"inner": "eager"},
    "kernels of torch and the original calls": {"libraries": False},
    "computing in front of products": {"fuse_loads": "never"},
    "kernels (torch operations instead)": {"executor": "tiled"},
}


@dataclass(frozen=True)
class ComparedRun:
    """One way to run the function: how far it is off, as a number, and whether that is the difference looked for."""

    differs: bool
    said: str


class EagerComparison:
    """A function with inputs, and eager's result and error to compare with. of: "numbers" or "speed"."""

    def __init__(self, called: TargetFunction, of: str = "numbers"):
        self.called, self.of = called, of
        self.exact = self.error = None
        if of == "numbers":
            self.exact = _run(_moved(called, torch.float64))
            self.error = self._error(_run(called))
        else:
            self.seconds = _seconds(lambda: _run(called))

    def outcome(self, options: Mapping[str, object] | None) -> ComparedRun:
        """What becomes of the function with these options; None for Inductor alone."""
        torch._dynamo.reset()
        how: dict[str, Any] = {} if options is None else {"backend": onepass_backend, "options": dict(options)}
        compiled = TargetFunction(
            torch.compile(self.called.function, **how), self.called.inputs, self.called.keywords
        )
        try:
            return self.judged(compiled)
        except OnepassError:
            raise
        except Exception as error:
            return ComparedRun(True, f"fails: {type(error).__name__}: {str(error).splitlines()[0][:100]}")

    def judged(self, compiled: TargetFunction) -> ComparedRun:
        """Whether the compiled function differs from eager."""
        if self.of == "speed":
            _run(compiled)
            took = _seconds(lambda: _run(compiled))
            return ComparedRun(took > MAX_SLOWDOWN * self.seconds, f"{took / self.seconds:.2f} times eager's time")
        error = self._error(_run(compiled))
        allowed = max(MOST_OF_EAGERS_ERROR * self.error, ROUNDINGS * self._rounding())
        return ComparedRun(not error <= allowed, f"error {error:.2g} (eager's {self.error:.2g})")

    def _error(self, result: list[torch.Tensor]) -> float:
        """The largest difference from float64; infinite where one of both has NaN, or other shapes."""
        worst = 0.0
        for mine, exact in zip(result, self.exact, strict=True):
            mine = mine.double()
            if mine.shape != exact.shape or not torch.equal(mine.isnan(), exact.isnan()):
                return inf
            apart = torch.where(mine == exact, 0.0, (mine - exact).abs())
            worst = max(worst, apart.nan_to_num(0.0, posinf=inf).max().item() if apart.numel() else 0.0)
        return worst

    def _rounding(self) -> float:
        floats = [x.dtype for x in tree_leaves(self.called.inputs) if isinstance(x, torch.Tensor)]
        eps = max((torch.finfo(d).eps for d in floats if d.is_floating_point), default=torch.finfo(torch.float32).eps)
        finite = [x[x.isfinite()].abs().max().item() for x in self.exact if x.isfinite().any()]
        return eps * max(finite, default=1.0)


def _run(called: TargetFunction) -> list[torch.Tensor]:
    with torch.no_grad():
        inputs, keywords = deepcopy((called.inputs, dict(called.keywords)))
        result = called.function(*inputs, **keywords)
    return [x for x in tree_leaves(result) if isinstance(x, torch.Tensor)]


def _moved(called: TargetFunction, dtype: torch.dtype) -> TargetFunction:
    move = lambda x: x.to(dtype) if isinstance(x, torch.Tensor) and x.is_floating_point() else x
    function = called.function
    if isinstance(function, torch.nn.Module):
        function = deepcopy(function).to(dtype)
    return TargetFunction(function, tree_map(move, called.inputs), tree_map(move, dict(called.keywords)))


def _seconds(call: Callable[[], object]) -> float:
    took = []
    for _ in range(CALLS):
        began = time.perf_counter()
        call()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        took.append(time.perf_counter() - began)
    return statistics.median(took)


def candidates(options: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The laws that the last compiled function used, the user's first: a name, and the options that leave it out."""
    rules = list(options.get("rules", ()))
    used = {step.rule for report in reports() for region in report.regions for step in region.derivation}
    for rule in rules:
        yield f"rule {rule.name}", {**options, "rules": [other for other in rules if other is not rule]}
    from ..rules import ALL

    for law in ALL:
        if law.name in used and law not in rules:
            left = [*options.get("without", ()), law.name]
            yield f"law {law.name}", {**options, "without": left}


def search(comparison: EagerComparison, options: dict[str, object], console: Console) -> tuple[list[str], list[str]]:
    """The parts and the laws without which the difference goes away; each outcome is printed."""

    def gone(name: str, tried: Mapping[str, object] | None) -> bool:
        try:
            found = comparison.outcome(tried)
        except OnepassError as error:
            console.print(f"  without {name}: cannot be tried: {error}", highlight=False, markup=False, soft_wrap=True)
            return False
        said = f"  without {name}: {'still there' if found.differs else 'gone'}; {found.said}"
        console.print(said, highlight=False, markup=False, soft_wrap=True)
        return not found.differs

    if not gone("onepass", None):
        return ["not onepass: Inductor alone differs, too"], []
    parts = [name for name, off in PARTS.items() if gone(name, {**options, **off})]
    base = options if "Inductor around" in parts else {**options, **PARTS["Inductor around"]}
    comparison.outcome(base)
    laws = []
    for name, tried in track([*candidates(base)], "laws", console=console, transient=True):
        if gone(name, tried):
            laws.append(name)
    return parts, laws


def run(chosen: Namespace) -> int:
    """Prints what was tried and what was found. Returns 0 if there is no difference, 1 if there is one."""
    from ..compiler.options import Options
    try:
        options = options_of(chosen)
        Options.read(options)
        called = target(chosen.target, InputChoice(tuple(chosen.shape), chosen.dtype, chosen.device))
    except OnepassError as error:
        print(f"onepass bisect: {error}", file=sys.stderr)
        return MISUSED
    if called.guessed:
        print(f"onepass bisect: assumed {called.guessed}; to give others, {HINT}", file=sys.stderr)
    console = Console(stderr=True)
    try:
        comparison = EagerComparison(called, chosen.of)
    except Exception as error:
        print(f"onepass bisect: {chosen.target} fails in eager: {type(error).__name__}: {error}", file=sys.stderr)
        return MISUSED
    whole = comparison.outcome(options)
    print(f"{chosen.target}, compiled: {whole.said}")
    if not whole.differs:
        print(f"no difference in {chosen.of} was found with these inputs")
        return 0
    parts, laws = search(comparison, options, console)
    for title, found in (("parts", parts), ("laws", laws)):
        print(f"{title} without which the difference goes away: {', '.join(found) or 'none'}")
    return 1

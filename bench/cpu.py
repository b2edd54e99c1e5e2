"""The CPU figures, as ratios from one run: time and memory against eager, capture to source, 32 layers against one.

Run by `make bench` or `python bench/cpu.py`; prints a table and writes nothing. Uses an empty disk cache.
"""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch

from onepass.api import backend
from onepass.cli import measure

HEADS, DIM = 8, 64
EAGER = {"inner": "eager", "libraries": False}


def main() -> None:
    if sys.argv[1:2] == ["--layers"]:
        print(module_seconds(int(sys.argv[2]), 256))
        return
    with tempfile.TemporaryDirectory() as folder:
        os.environ["ONEPASS_CACHE"] = folder
        print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}")
        times()
        memory()
        capture()
        layers()
        host()
        beside_nothing()


def times() -> None:
    for spelling in ("plain", "causal"):
        for size in (2048, 4096):
            seconds = measure.in_process("time", ",".join(measure.FORMS), spelling, size, HEADS, DIM)
            line = ", ".join(f"{form} {seconds[form] * 1e3:.1f} ms" for form in measure.FORMS)
            say(f"time, {spelling}, S {size}", seconds["fused"] / seconds["eager"], 1.0, f"{line} ({seconds['ran']})")


def memory() -> None:
    for spelling in ("plain", "causal"):
        peak = measure.in_process("memory", "fused", spelling, 8192, HEADS, DIM)["bytes"] / 2**20
        say(f"extra memory, {spelling}, S 8192", peak / 64, 1.0, f"{peak:.1f} MiB of 64 MiB")


def capture() -> None:
    """One attention, from Dynamo's graph to kernel source, nothing cached: in new processes, and again when warm."""
    cold = [cold_seconds(1) for _ in range(3)]
    say("capture to kernel source, cold", max(cold) / 0.3, 1.0, f"{', '.join(f'{s * 1e3:.0f}' for s in cold)} ms")
    module_seconds(1, 128)
    warm = [module_seconds(1, 256 + 64 * k) for k in range(3)]
    say("capture to kernel source, warm", max(warm) / 0.3, 1.0, f"{', '.join(f'{s * 1e3:.0f}' for s in warm)} ms")


def layers() -> None:
    """Onepass's own time for a module of 32 equal layers against one layer: in new processes, and when warm."""
    cold = statistics.median(cold_seconds(32) / cold_seconds(1) for _ in range(3))
    say("32 layers against one, cold", cold / 1.2, 1.0, f"{cold:.2f} times")
    warm = statistics.median(module_seconds(32, 1024 + 64 * k) / module_seconds(1, 1056 + 64 * k) for k in range(5))
    say("32 layers against one, warm", warm / 1.2, 1.0, f"{warm:.2f} times")


def cold_seconds(count: int) -> float:
    """module_seconds in a new process with an empty cache; what onepass and egglog import is in it."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, "--layers", str(count)]
        done = subprocess.run(command, env={**os.environ, "ONEPASS_CACHE": folder}, capture_output=True, text=True)
    return float(done.stdout.split()[-1])


def host() -> None:
    """What a call costs beside the kernel: of the operation and through torch.compile, against SDPA's of the same."""
    from onepass.runtime import executors

    small = [torch.randn(1, 2, 16, 16) for _ in range(3)]
    sdpa = torch.nn.functional.scaled_dot_product_attention
    executors.EXECUTORS["tiled"] = lambda found, tensors, call: lambda given: [torch.empty_like(given[0])]
    with torch.no_grad():
        for dynamic in (False, True):
            torch._dynamo.reset()
            fused = torch.compile(
                lambda *x: measure.plain(*x), backend=backend.onepass_backend, dynamic=dynamic, options=EAGER
            )
            theirs = torch.compile(lambda *x: sdpa(*x), backend="eager", dynamic=dynamic)
            mine, other = (min(microseconds(f, small) for _ in range(9)) for f in (fused, theirs))
            name = f"host time, {'dynamic' if dynamic else 'static'} sizes"
            say(name, mine / other / 1.2, 1.0, f"{mine:.1f} us, SDPA {other:.1f} us, both through torch.compile")


def beside_nothing() -> None:
    """What a region's call costs more than a call of an operation that does nothing, both in Inductor's code."""
    from onepass.runtime import executors

    small, result = [torch.randn(1, 2, 16, 16) for _ in range(3)], [torch.empty(1, 2, 16, 16)]
    executors.EXECUTORS["tiled"] = lambda found, tensors, call: lambda given: result
    library = torch.library.Library("onepass_bench", "FRAGMENT")
    library.define("nothing(Tensor[] given) -> Tensor[]")
    library.impl("nothing", lambda given: result, "CompositeExplicitAutograd")
    torch.library.register_fake("onepass_bench::nothing", lambda given: [torch.empty_like(given[0])], lib=library)
    with torch.no_grad():
        torch._dynamo.reset()
        options = {"libraries": False}
        fused = torch.compile(lambda *x: measure.plain(*x), backend=backend.onepass_backend, options=options)
        nothing = torch.compile(lambda *x: torch.ops.onepass_bench.nothing(list(x))[0])
        mine, other = zip(*((microseconds(fused, small), microseconds(nothing, small)) for _ in range(15)), strict=True)
    more = min(mine) - min(other)
    say("host time beside nothing", more / 15, 1.0, f"{more:.1f} us: {min(mine):.1f} us, nothing {min(other):.1f} us")


def microseconds(function, arguments, runs: int = 1000) -> float:
    function(*arguments)
    start = time.process_time()
    for _ in range(runs):
        function(*arguments)
    return 1e6 * (time.process_time() - start) / runs


class Layers(torch.nn.Module):
    def __init__(self, count: int):
        super().__init__()
        self.projections = torch.nn.ModuleList(torch.nn.Linear(DIM, 3 * DIM) for _ in range(count))

    def forward(self, x):
        for projection in self.projections:
            q, k, v = projection(x).chunk(3, -1)
            x = x + measure.plain(q, k, v)
        return x


def module_seconds(count: int, size: int) -> float:
    """What the backend takes, Dynamo's and PyTorch's own time left out."""
    from onepass.compiler.options import Options
    from onepass.graph_passes.pipeline import rewrite

    taken = []

    def backend(gm, inputs):
        start = time.perf_counter()
        report = rewrite(gm.graph, Options(inner="eager"), sources=True)
        taken.append(time.perf_counter() - start)
        if sum(region.count for region in report.regions) != count:
            print(f"only {report}")
        return gm.forward

    torch._dynamo.reset()
    with torch.no_grad():
        torch.compile(Layers(count), backend=backend)(torch.randn(1, 2, size, DIM))
    return sum(taken)


def say(what: str, ratio: float, most: float, detail: str) -> None:
    print(f"{what:32} {ratio:6.2f} of the limit  {'ok  ' if ratio <= most else 'OVER'}  {detail}")


if __name__ == "__main__":
    main()

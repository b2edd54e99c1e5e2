"""`make demo`: fuses the attention of a small GPT-like block, and compares it with eager PyTorch.

It prints the captured term, the rules that fired, passes and bytes, and the kernel's source; then errors against
float64, time and peak memory of both. It uses a GPU if there is one.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from torch import nn

from ..api.explain import explain
from ..report.records import RegionReport, reports
from . import measure

CONTEXT, WIDTH, HEADS = 512, 256, 4
MEASURED_HEADS, MEASURED_DIM = 8, 64
# The forms of measure.py that are shown. On a CPU "fused" alone is what nobody gets where torch's attention is faster.
SHOWN = {"cpu": ("eager", "onepass"), "cuda": ("eager", "fused", "onepass")}
NAMES = {"fused": "onepass's own kernels", "onepass": "onepass"}
ON_A_CPU = "on a CPU no kernel runs: torch operations do, tile by tile, or torch's own attention where that is faster"


class DemoBlock(nn.Module):
    """An embedding of bytes, causal attention in plain PyTorch, and a two-layer perceptron."""

    def __init__(self, width: int = WIDTH, heads: int = HEADS):
        super().__init__()
        self.heads = heads
        self.embed = nn.Embedding(256, width)
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def attend(self, x: torch.Tensor) -> torch.Tensor:
        """Causal attention of x, of shape (batch, length, width)."""
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        mask = torch.tril(torch.ones(length, length, dtype=torch.bool, device=x.device))
        weights = torch.softmax(scores.masked_fill(~mask, float("-inf")), dim=-1)
        return self.out((weights @ v).transpose(1, 2).reshape(batch, length, width))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """The block's output, of shape (batch, length, width), for integer tokens of shape (batch, length)."""
        x = self.embed(tokens)
        x = x + self.attend(self.first(x))
        return x + self.down(torch.relu(self.up(self.second(x))))


def text_bytes(count: int) -> bytes:
    """The README of a checkout, or this module's docstring, repeated to the length."""
    readme = Path(__file__).resolve().parents[2] / "README.md"
    text = readme.read_bytes() if readme.is_file() else (__doc__ or "onepass").encode()
    return (text * (count // len(text) + 1))[:count]


@torch.no_grad()
def demo(size: int = 4096) -> int:
    """Runs the demo. Returns 1 if nothing was fused or the fused block is not exact enough."""
    console = Console(highlight=False)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("building a block", total=None)

        def doing(what: str) -> None:
            progress.update(task, description=what)
            if not console.is_terminal:
                console.print(f"... {what}", style="dim")

        torch.manual_seed(0)
        block = DemoBlock().to(device).eval()
        tokens = torch.frombuffer(bytearray(text_bytes(CONTEXT)), dtype=torch.uint8).long()[None].to(device)
        doing(f"capturing and searching: {CONTEXT} bytes of text, width {WIDTH}, {HEADS} heads, on {device}")
        report = explain(block, tokens)
        for region in report.regions:
            _print_region(console, region)
        for refused in report.refusals:
            console.print(f"left as written: {refused.where}: {refused.reason}", markup=False)
        doing("running the block fused, by eager and in float64")
        right = _print_errors(console, block, tokens)
        doing(f"measuring time at S = {size} (H {MEASURED_HEADS}, D {MEASURED_DIM}), eager and onepass in turns")
        _print_time(console, size, device)
        doing(f"measuring peak memory at S = {size}, each in its own process")
        _print_memory(console, size, device)
    return 0 if right and report.regions else 1


def _print_region(console: Console, region: RegionReport) -> None:
    console.rule("what the attention of the block became")
    console.print(str(region), markup=False, soft_wrap=True)


def _print_errors(console: Console, block: DemoBlock, tokens) -> bool:
    """Prints the largest errors against float64. True if the fused error is at most twice eager's, plus 1e-6."""
    from ..api.backend import onepass_backend

    fused = torch.compile(block, backend=onepass_backend, options={"inner": "eager"})
    result, eager = fused(tokens), block(tokens)
    exact = copy.deepcopy(block).double()(tokens)
    errors = [(x.double() - exact).abs().max().item() for x in (result, eager)]
    console.rule("how right")
    console.print(f"max error against float64: fused {errors[0]:.3g}, eager {errors[1]:.3g}", markup=False)
    for note in {n for report in reports() for region in report.regions for n in region.notes}:
        console.print(f"note: {note}", markup=False)
    return errors[0] <= 2 * errors[1] + 1e-6


def _print_time(console: Console, size: int, device: str) -> None:
    console.rule(f"time and memory of causal attention, S = {size}")
    try:
        forms = ",".join(SHOWN[device])
        seconds = measure.in_process("time", forms, "causal", size, MEASURED_HEADS, MEASURED_DIM)
    except RuntimeError as error:
        console.print(f"time: {error}", markup=False)
        return
    found = {form: 1e3 * seconds[form] for form in SHOWN[device]}
    console.print(line_of_forms("time", found, "ms"), markup=False, soft_wrap=True)


def _print_memory(console: Console, size: int, device: str) -> None:
    try:
        found = {
            form: measure.in_process("memory", form, "causal", size, MEASURED_HEADS, MEASURED_DIM)
            for form in SHOWN[device]
        }
    except RuntimeError as error:
        console.print(f"memory: {error}", markup=False)
        return
    peaks = {form: known["bytes"] / 2**20 for form, known in found.items()}
    console.print(line_of_forms("memory", peaks, "MiB"), markup=False, soft_wrap=True)
    for form in SHOWN[device][1:]:
        console.print(f"{NAMES[form]} ran by {found[form]['ran']}", markup=False, soft_wrap=True)
    if device == "cpu":
        console.print(ON_A_CPU, markup=False, soft_wrap=True)


def line_of_forms(what: str, found: Mapping[str, float], unit: str) -> str:
    """What was measured of each form, eager first, and the share of eager's that it is."""
    parts = [f"eager {found['eager']:.1f} {unit}"]
    for form in [form for form in found if form != "eager"]:
        share = found[form] / max(found["eager"], 1e-9)
        parts.append(f"{NAMES[form]} {found[form]:.1f} {unit} ({share:.2g} of eager's)")
    return f"{what:7} {', '.join(parts)}"

"""Measures what lowering/plan/device.py assumes of one multiprocessor: rates of units and the latency of a load.

`python bench/calibrate.py --out bench/results/machine_h200.json` runs each micro-kernel twice, one with twice the
rounds: the difference has no launch in it. Clocks come from the same difference of a kernel that reads its clock.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
import triton
import triton.language as tl

from onepass.lowering.plan.device import H200

ROUNDS, REPEAT, WARPS, ELEMENTS = 4000, 5, 8, 4096


@triton.jit
def special(out, rounds, N: tl.constexpr):
    x = tl.arange(0, N).to(tl.float32) * 1e-4
    for _ in range(rounds):
        x = tl.exp2(x)
    tl.store(out + tl.program_id(0) * N + tl.arange(0, N), x)


@triton.jit
def multiply_add(out, rounds, N: tl.constexpr):
    x = tl.arange(0, N).to(tl.float32) * 1e-4
    for _ in range(rounds):
        x = x * 0.999 + 0.001
    tl.store(out + tl.program_id(0) * N + tl.arange(0, N), x)


@triton.jit
def hyperbolic(out, rounds, N: tl.constexpr):
    x = tl.arange(0, N).to(tl.float32) * 1e-4
    for _ in range(rounds):
        x = 1.0 - 2.0 / (1.0 + tl.exp2(x * 2.8853900817779268))
    tl.store(out + tl.program_id(0) * N + tl.arange(0, N), x)


@triton.jit
def product(out, rounds, a, b, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    start = tl.inline_asm_elementwise("mov.u64 $0, %clock64;", "=l", [], dtype=tl.int64, is_pure=False, pack=1)
    m, n, k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    left = tl.load(a + m[:, None] * K + k[None, :])
    right = tl.load(b + k[:, None] * N + n[None, :])
    total = tl.zeros((M, N), tl.float32)
    for _ in range(rounds):
        total = tl.dot(left, right, total)
    tl.store(out + 1 + (tl.program_id(0) * M + m[:, None]) * N + n[None, :], total)
    end = tl.inline_asm_elementwise("mov.u64 $0, %clock64;", "=l", [], dtype=tl.int64, is_pure=False, pack=1)
    tl.store(out + tl.program_id(0) * 0, (end - start).to(tl.float32))


@triton.jit
def copy(out, rounds, source, N: tl.constexpr):
    x = tl.zeros((N,), tl.float32)
    for k in range(rounds):
        x += tl.load(source + (k + tl.program_id(0)) % 64 * N + tl.arange(0, N))
    tl.store(out + tl.program_id(0) * N + tl.arange(0, N), x)


@triton.jit
def chase(out, rounds, links):
    at = tl.program_id(0) * 0
    for _ in range(rounds):
        at = tl.load(links + at, cache_modifier=".cg")
    tl.store(out + tl.program_id(0), at.to(tl.float32))


@triton.jit
def clocks(out, rounds, N: tl.constexpr):
    start = tl.inline_asm_elementwise("mov.u64 $0, %clock64;", "=l", [], dtype=tl.int64, is_pure=False, pack=1)
    x = tl.arange(0, N).to(tl.float32)
    for _ in range(rounds):
        x = x * 0.999 + 0.001
    tl.store(out + 1 + tl.program_id(0) * N + tl.arange(0, N), x)
    end = tl.inline_asm_elementwise("mov.u64 $0, %clock64;", "=l", [], dtype=tl.int64, is_pure=False, pack=1)
    tl.store(out + tl.program_id(0) * 0, (end - start).to(tl.float32))


def milliseconds(launch, rounds: int) -> float:
    taken = []
    launch(rounds)
    for _ in range(REPEAT):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        launch(rounds)
        end.record()
        torch.cuda.synchronize()
        taken.append(start.elapsed_time(end))
    return min(taken)


def seconds_a_round(launch, rounds: int = ROUNDS) -> float:
    return (milliseconds(launch, 2 * rounds) - milliseconds(launch, rounds)) / rounds / 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", required=True)
    options = parser.parse_args()
    count = torch.cuda.get_device_properties(0).multi_processor_count
    out = torch.empty(count * 4 * 64 * 256 + 1, device="cuda")
    halves = lambda *shape: torch.randn(*shape, device="cuda", dtype=torch.bfloat16) * 0.01
    left, right = halves(128, 128), halves(128, 128)
    source, links = (
        torch.randn(64 * ELEMENTS, device="cuda"),
        torch.arange(1 << 20, device="cuda", dtype=torch.int32).roll(-4099),
    )
    grid, options_of = (count,), {"num_warps": WARPS}

    def hertz_of(kernel, *rest, rounds=ROUNDS) -> float:
        """Clocks a second while this kernel runs, which must store the clocks that it took in front."""

        def clock(n):
            kernel[grid](out, n, *rest, **options_of)
            return out[0].item()

        clock(rounds)
        launch = lambda n: kernel[grid](out, n, *rest, **options_of)
        return (clock(2 * rounds) - clock(rounds)) / rounds / seconds_a_round(launch, rounds)

    hertz = hertz_of(clocks, ELEMENTS)
    each = lambda kernel, *rest: seconds_a_round(lambda n: kernel[grid](out, n, *rest, **options_of)) * hertz
    tanh = each(hyperbolic, ELEMENTS)
    found = {
        "clock": hertz,
        "clock_of_products": hertz_of(product, left, right, 128, 128, 128, rounds=50 * ROUNDS),
        "special": ELEMENTS / each(special, ELEMENTS),
        "lanes": ELEMENTS / each(multiply_add, ELEMENTS),
        "tanh": ELEMENTS / tanh,
        "tensor_flops": 2 * 128**3 / each(product, left, right, 128, 128, 128),
        "copy_bytes": 4 * ELEMENTS / each(copy, source, ELEMENTS),
        "load_latency": seconds_a_round(lambda n: chase[(1,)](out, n, links, num_warps=1)) * hertz,
    }
    assumed = {name: getattr(H200, name, None) for name in found}
    about = {"machine": torch.cuda.get_device_name(), "torch": torch.__version__, "triton": triton.__version__}
    Path(options.out).write_text(json.dumps({**about, "measured": found, "assumed": assumed}, indent=1) + "\n")
    for name, value in found.items():
        print(f"{name:14}{value:16.2f}  assumed {assumed[name]}")


if __name__ == "__main__":
    main()

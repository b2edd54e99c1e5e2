"""Gluon kernels of derived plans on a Hopper GPU: values against float32 first, then medians timed in turns with cuDNN.

Arguments: `check` (small shapes of every variant), `hostile` (the same with NaN, infinities and large numbers), `time`
(full and causal, D 64/128/256), `variants` (all at 4096), `host`. With `warm` beside these nothing is timed: kernels
are compiled, by several processes at once if need be. A watchdog ends the process when a kernel hangs. Rates are
TFLOP/s; cuDNN and FA3 run where they have the form.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import sys
import threading
import time
from dataclasses import fields, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from onepass.lowering.gluon.launch import GluonLauncher, fitting
from onepass.lowering.hopper.config import HopperConfig
from onepass.lowering.hopper.kernel_form import bind
from onepass.lowering.triton.launch import Launcher
from tests.support.gluon_ahead_of_time import CHANGES, inputs_of, plain, plan_of

NAMES = {"q": 0, "k": 1, "v": 2, "more": 3, "one": 3, "two": 4}
LAST = [time.monotonic(), "start"]
KINDS = "full causal window strided shifted alibi softcap groups bias vector documents difference narrow".split()
KINDS += "logarithm peak evoformer prefix longformer dilated slanted".split()
KINDS += ["relative", "backwards", "gate", "boolean", "blocks", "joined", "sigmoid", "capped"]


def watchdog(limit: float = 60.0) -> None:
    def watch():
        while time.monotonic() - LAST[0] < limit:
            time.sleep(1)
        print(f"HANG at {LAST[1]}", flush=True)
        os._exit(3)

    threading.Thread(target=watch, daemon=True).start()


def alive(what: str) -> None:
    LAST[:] = [time.monotonic(), what]


def named(plan, inputs) -> dict:
    """The inputs by the plan's names: a parameter's, or its number where one name would not do."""
    place = lambda name: int(name[3:].split("_")[0]) if name.startswith("arg") else NAMES[name]
    return {t.name: inputs[place(t.name)] for t in plan.inputs}


def case(kind: str, width: int, dtype: str = "bfloat16", **sizes):
    torch.manual_seed(0)
    inputs = [x.cuda() for x in inputs_of(kind, width, dtype, **sizes)]
    plan = plan_of(kind, width, dtype, **sizes)
    return plan, inputs, named(plan, inputs)


def compared(results, kind, inputs) -> tuple[float, float]:
    """Largest difference from float32 over the largest exact value, ours and eager's own; infinite if NaN differ."""
    listed = lambda x: x if isinstance(x, tuple) else (x,)
    exact = listed(plain(kind)(*(x.float() if x.is_floating_point() else x for x in inputs)))
    own = listed(plain(kind)(*inputs))
    if not all(torch.equal(r.isnan(), e.isnan()) for r, e in zip(results, exact, strict=True)):
        return math.inf, 0.0
    gap = lambda x, e: (x.float() - e).nan_to_num().abs().max().item() / e.nan_to_num().abs().max().item()
    return max(map(gap, results, exact)), max(map(gap, own, exact))


def spoil(q, k, *_) -> None:
    """Rows of NaN, of infinities and of large numbers, and a key that makes some scores infinite of either sign."""
    q[0, 0, 3], q[0, 0, 9], q[0, 2] = math.nan, math.inf, 100 * q[0, 2]
    q[0, 1, 5], k[0, 1, 7, 0], k[0, 3, 40:90] = -math.inf, math.inf, -1e4


def check(kinds, widths, shapes, dtype="bfloat16", changes=(), hostile=False) -> None:
    shapes = [(kind, width, *shape, change) for kind in kinds for width in widths for shape in shapes for change in
              ("", *changes)]  # fmt: skip
    for kind, width, rows, columns, change in shapes:
        columns = rows if kind == "documents" else columns
        label = f"{kind:10} D {width:3} {rows}x{columns} {dtype} {change}"
        alive(label)
        try:
            plan, inputs, values = case(kind, width, dtype, rows=rows, columns=columns)
            if hostile:
                spoil(*inputs)
            launcher = alternatives(plan, [change])[change] if change else GluonLauncher(plan)
            first = launcher.results(values)
            torch.cuda.synchronize()
            again = [launcher.results(values) for _ in range(3)]
            same = all(torch.equal(a.nan_to_num(), b.nan_to_num()) for r in again for a, b in zip(r, first))
            ours, own = compared(first, kind, inputs)
            verdict = "ok" if ours <= 2 * own + 2e-3 and same else "WRONG"
            refused = " ".join(launcher.refusals.values())
            print(
                f"{verdict:5} {label} {ours:.1e} eager {own:.1e} {'' if same else 'UNSTABLE'} {refused}",
                flush=True,
            )
        except Exception as error:
            print(f"ERROR {label} {type(error).__name__}: {str(error)[:300]}", flush=True)


def in_turns(calls: dict, rounds: int, inner: int = 10) -> dict[str, float]:
    """Median milliseconds, calls interleaved, the L2 flushed before each."""
    flush = torch.empty(256 << 20, dtype=torch.int8, device="cuda")
    times: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(rounds + 1):
        for name, call in calls.items():
            events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(inner)]
            for start, end in events:
                flush.zero_()
                start.record()
                call()
                end.record()
            torch.cuda.synchronize()
            if turn:
                times[name] += [a.elapsed_time(b) for a, b in events]
    return {name: statistics.median(t) for name, t in times.items()}


def newest(q, k, v, causal: bool) -> dict:
    """FlashAttention-3's forward pass, if its wheel is there."""
    try:
        from fa3_fwd_interface import flash_attn_func
    except ImportError:
        return {}
    q, k, v = (x.transpose(1, 2).contiguous() for x in (q, k, v))
    return {"fa3": lambda: flash_attn_func(q, k, v, causal=causal)}


def fraction(kind: str, length: int) -> float:
    """The share of scores that the mask keeps, as peers count it."""
    known = {"causal": 0.5, "window": 256 / length, "documents": 1 / 12, "blocks": 0.1}
    if kind in known or kind not in CHANGES:
        return known.get(kind, 1.0)
    return CHANGES[kind](torch.zeros(1, length, length, device="cuda")).isfinite().float().mean().item()


def alternatives(plan, changes: list[str]) -> dict:
    """Launchers with the default settings changed, as "send=1" or "consumers=2,loop_tile=128" say."""
    found, (kernel, *_) = {}, plan.kernels
    binding = bind(kernel)
    for text in changes if not isinstance(binding, str) else []:
        values = {name: int(value) for name, value in (part.split("=") for part in text.split(","))}
        kinds = {f.name: f.type for f in fields(HopperConfig)}
        values = {name: bool(value) if kinds[name] == "bool" else value for name, value in values.items()}
        config = replace(fitting(binding, {}, binding.overlays), **values)
        found[text] = GluonLauncher(plan, hopper_configs={kernel.name: config})
    return found


def measure(kind: str, width: int, length: int, rounds: int = 4, changes=(), tokens: int = 16384, hidden=2048) -> None:
    alive(f"{kind} {width} {length}")
    batch, heads = tokens // length, hidden // width
    if kind == "evoformer":
        batch, heads, length = 8, 256, 256
    plan, inputs, values = case(kind, width, rows=length, columns=length, batch=batch, heads=heads)
    gluon, triton = GluonLauncher(plan), Launcher(plan)
    calls = {"gluon": lambda: gluon(values), "triton": lambda: triton(values)}
    calls |= {text: lambda other=other: other(values) for text, other in alternatives(plan, changes).items()}
    if kind in ("full", "causal"):

        def cudnn():
            with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
                return torch.nn.functional.scaled_dot_product_attention(*inputs, is_causal=kind == "causal")

        calls["cudnn"] = cudnn
        calls |= newest(*inputs, kind == "causal")
    results = {}
    for name, call in list(calls.items()):
        try:
            results[name] = call()
            torch.cuda.synchronize()
        except Exception as error:
            print(f"  {name}: {type(error).__name__}: {str(error)[:200]}", flush=True)
            del calls[name]
    if not rounds:
        return
    for name in [n for n in results if n not in ("cudnn", "fa3", "gluon")]:
        gap = (results["gluon"].float() - results[name].float()).abs().max().item()
        if not gap < 2e-2:
            print(f"WRONG {kind} D {width} S {length}: gluon and {name} differ by {gap}", flush=True)
    alive(f"timing {kind} {width} {length}")
    times = in_turns(calls, rounds)
    flops = 4 * batch * heads * length * length * width * fraction(kind, length)
    flops *= {"difference": 1.5, "narrow": 0.75, "evoformer": 4}.get(kind, 1)
    rates = " ".join(f"{name} {flops / t / 1e9:6.1f} ({t:.4f} ms)" for name, t in times.items())
    print(f"{kind:10} D {width:3} S {length:5} {rates} {' '.join(gluon.refusals.values())}", flush=True)


def host() -> None:
    """Microseconds of the host for one call of a tiny problem, against attention of torch itself."""
    plan, inputs, values = case("full", 64, rows=64, columns=64, batch=1, heads=1)
    gluon, triton = GluonLauncher(plan), Launcher(plan)
    sdpa = lambda: torch.nn.functional.scaled_dot_product_attention(*inputs)
    for name, call in {"gluon": lambda: gluon(values), "triton": lambda: triton(values), "sdpa": sdpa}.items():
        for count in (20, 500):
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(count):
                call()
            spent = time.perf_counter() - start
        print(f"host {name}: {spent / 500 * 1e6:.1f} us", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="+")
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--widths", default="64,128,256")
    parser.add_argument("--lengths", default="1024,4096,16384")
    parser.add_argument("--change", action="append", default=[], help="a schedule to time beside the default: send=1")
    options = parser.parse_args()
    kinds, widths = options.kinds.split(","), [int(w) for w in options.widths.split(",")]
    watchdog()
    torch.set_grad_enabled(False)
    print(torch.cuda.get_device_name(), torch.__version__, flush=True)
    shapes = [(1024, 1024), (300, 517), (1000, 200)]
    if "check" in options.what:
        check(kinds, widths, shapes, changes=options.change)
    if "hostile" in options.what:
        check(kinds, widths, shapes[:2], changes=options.change, hostile=True)
    rounds = 0 if "warm" in options.what else None
    if "time" in options.what:
        for width in widths:
            for kind in ("full", "causal"):
                for length in map(int, options.lengths.split(",")):
                    measure(kind, width, length, 4 if rounds is None else rounds, options.change)
    if "variants" in options.what:
        for kind in kinds:
            for width in widths:
                try:
                    measure(kind, width, 4096, 2 if rounds is None else rounds, options.change)
                except Exception as error:
                    print(f"ERROR {kind} {width}: {type(error).__name__}: {str(error)[:200]}", flush=True)
    if "host" in options.what:
        host()


if __name__ == "__main__":
    main()

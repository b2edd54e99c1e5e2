"""The derived Triton kernels against FlexAttention and SDPA on one GPU: values first, then medians timed in turns.

bf16, full and causal, D 64 and 128, S 4096 and 16384, 16384 tokens, hidden 2048. Prints TFLOP/s and the ratio to Flex;
--tune tries the candidate configurations per shape; --out writes CSV. One failing configuration never stops the rest.
"""

from __future__ import annotations

import argparse
import csv
import math
import statistics
import sys
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
import triton
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from triton.testing import do_bench

from onepass.backend import onepass_backend
from onepass.capture import program_of
from onepass.lowering.triton_launch import Launcher
from onepass.lowering.tuning import candidates, default_config
from onepass.pipeline import optimize
from onepass.translate import translate

TOLERANCE = 2e-2  # largest accepted difference from float32 attention, for bf16 inputs of unit variance


def attention(causal: bool):
    """Attention as a user writes it, in plain PyTorch."""

    def plain(q, k, v):
        score = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        if causal:
            rows, columns = (torch.arange(n, device=q.device) for n in score.shape[-2:])
            score = torch.where(columns <= rows[:, None], score, -math.inf)
        return torch.softmax(score, -1) @ v

    return plain


def derived_plan(causal: bool, *inputs):
    """The plan that onepass derives from the plain spelling, without torch.compile around it."""
    captured = translate(program_of(attention(causal), *inputs))
    return optimize(captured.term, captured.output, captured.order).plan


def reference(q, k, v, causal: bool, rows: int = 512):
    """Attention of the first head's last rows in float32: rows that see every tile class."""
    q, k, v = (x[:1, :1].float() for x in (q, k, v))
    score = q[:, :, -rows:] @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    if causal:
        length = k.shape[-2]
        keep = torch.arange(length, device=q.device) <= torch.arange(length - rows, length, device=q.device)[:, None]
        score = score.masked_fill(~keep, -math.inf)
    return torch.softmax(score, -1) @ v


def error_of(result, expected, first) -> float:
    """Largest difference from the float32 slice and from `first`; infinite if anything is not finite."""
    if not bool(torch.isfinite(result).all()):
        return math.inf
    far = 0.0 if first is None else (result.float() - first.float()).abs().max().item()
    near = (result[:1, :1, -expected.shape[-2] :].float() - expected).abs().max().item()
    return max(near, far)


def say(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:90]}".replace(",", ";")


def peers(q, k, v, causal: bool) -> dict:
    """Callables by name; the block mask and the compiled function are made before anything is timed."""
    flex = torch.compile(flex_attention, dynamic=False)
    length = q.shape[-2]
    mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, length, length, device=q.device) if causal else None

    def cudnn():
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)

    return {"flex": lambda: flex(q, k, v, block_mask=mask), "cudnn": cudnn}


def milliseconds(call, repeat: int = 100) -> float:
    return do_bench(call, warmup=20, rep=repeat, return_mode="median")


def checked(name: str, call, expected, first, notes: dict):
    """The call, if it runs and is right; None otherwise, with the reason noted."""
    try:
        result = call()
        torch.cuda.synchronize()
        difference = error_of(result, expected, first)
    except Exception as error:
        notes[name] = say(error)
        return None
    if difference > TOLERANCE:
        notes[name] = f"wrong: off by {difference:.3g}"
        return None
    notes[name] = f"error {difference:.1e}"
    return call


def in_turns(calls: dict, rounds: int, notes: dict) -> dict[str, float]:
    """Median of medians, the calls interleaved so that clocks and temperature are shared."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            try:
                times[name].append(milliseconds(call))
            except Exception as error:
                notes[name] = say(error)
    return {name: statistics.median(values) for name, values in times.items() if values}


def tuned(plan, inputs, width: int, expected, first, notes: dict) -> dict:
    """Every candidate that is right, with its time printed; the best one by name."""
    best, table = None, []
    for config in candidates(width):
        launcher = Launcher(plan, config)
        call = checked(str(config), lambda launcher=launcher: launcher(inputs), expected, first, notes)
        if call is None:
            print(f"    {config}: {notes[str(config)]}", flush=True)
            continue
        time = milliseconds(call, 60)
        table.append((time, config))
        print(f"    {config}: {time:.4f} ms", flush=True)
        best = min(best, (time, str(config), call), key=lambda x: x[0]) if best else (time, str(config), call)
    return {f"best {best[1]}": best[2]} if best else {}


def measure(length: int, width: int, causal: bool, options, rows: list) -> None:
    batch, heads = 16384 // length, 2048 // width
    flops = 4 * batch * heads * length * length * width / (2 if causal else 1)
    shape = f"b{batch}h{heads}s{length}d{width} {'causal' if causal else 'full'}"
    q, k, v = (torch.randn(batch, heads, length, width, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    expected, notes, inputs = reference(q, k, v, causal), {}, {"q": q, "k": k, "v": v}
    torch._dynamo.reset()
    others = peers(q, k, v, causal)
    calls = {name: checked(name, call, expected, None, notes) for name, call in others.items()}
    first = calls["flex"]() if calls["flex"] else None
    plan = derived_plan(causal, q, k, v)
    ours = Launcher(plan)
    calls["kernel"] = checked("kernel", lambda: ours(inputs), expected, first, notes)
    compiled = torch.compile(attention(causal), backend=onepass_backend, dynamic=False, options={"strict": True})
    calls["onepass"] = checked("onepass", lambda: compiled(q, k, v), expected, first, notes)
    print(f"{shape}: default {default_config(width, 2, 'sm_90')}", flush=True)
    if options.tune:
        calls |= tuned(plan, inputs, width, expected, first, notes)
    times = in_turns({name: call for name, call in calls.items() if call}, options.rounds, notes)
    flex = times.get("flex", math.nan)
    for name in calls:
        time = times.get(name, math.nan)
        rate, ratio, note = flops / time / 1e9, flex / time, notes.get(name, "")
        rows.append((shape, name, f"{time:.4f}", f"{rate:.1f}", f"{ratio:.3f}", note))
        print(f"  {name:36} {time:8.4f} ms {rate:7.1f} TFLOP/s  {ratio:5.3f} x flex  {note}")
    sys.stdout.flush()


def host_microseconds() -> float:
    """Time of one call on the host: a tiny problem, launched many times without waiting."""
    inputs = {name: torch.randn(1, 1, 16, 64, device="cuda", dtype=torch.bfloat16) for name in "qkv"}
    launcher = Launcher(derived_plan(False, *inputs.values()))
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    launcher(inputs)
    start.record()
    for _ in range(1000):
        launcher(inputs)
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tune", action="store_true", help="try the candidate configurations per shape")
    parser.add_argument("--out", help="write the table as CSV to this file")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--lengths", default="4096,16384")
    parser.add_argument("--widths", default="64,128")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.manual_seed(0)
    machine = f"{torch.cuda.get_device_name()} torch {torch.__version__} triton {triton.__version__}"
    print(machine, flush=True)
    rows: list[tuple] = []
    torch.set_grad_enabled(False)
    for width in map(int, options.widths.split(",")):
        for length in map(int, options.lengths.split(",")):
            for causal in (False, True):
                try:
                    measure(length, width, causal, options, rows)
                except Exception as error:
                    print(f"S {length} D {width} causal {causal}: {say(error)}", flush=True)
                torch.cuda.empty_cache()
    try:
        print(f"host time of one call: {host_microseconds():.1f} us")
    except Exception as error:
        print(f"host time: {say(error)}")
    if options.out:
        with open(options.out, "w", newline="") as file:
            head = [("machine", machine), ("shape", "name", "ms", "tflops", "over_flex", "note")]
            csv.writer(file).writerows([*head, *rows])


if __name__ == "__main__":
    main()

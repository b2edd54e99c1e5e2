"""Few queries against a long cache on one GPU: kernels of derived plans under several settings, and SDPA's by name.

`decode.py b4h32g8k16384d128:16x64x4x3x0,...`: g queries share a key head; with l512 behind it all share rows of that
width, from which keys and values are raised; with q8 keys and values are int8 with a scale for each. A setting is rows
x loop x warps x stages x parts, 0 parts for as many as fill the device. Each is compared with float32; rates are bytes
of what is kept over the median time of a captured call with a cold L2 cache, and last comes what a call that is not
captured costs the host.
"""

from __future__ import annotations

import argparse
import math
import re
import statistics
import sys
import time
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch

from bench import quantised_cache
from onepass.bench.beyond_flex import latent
from onepass.bench.problems import repeated, sdpa
from onepass.compiler.optimize import optimize
from onepass.graph.trace import program_of
from onepass.lowering.plan.kernel_config import TritonConfig
from onepass.lowering.triton.launch import Launcher, LaunchError
from onepass.translate.translate import translate

TOLERANCE = 2e-2


def plain(q, k, v):
    times = q.shape[1] // k.shape[1]
    k, v = (repeated(x, times) if times > 1 else x for x in (k, v))
    return torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]), dim=-1) @ v


FORM = re.compile(r"b(\d+)h(\d+)g(\d+)k(\d+)d(\d+)(?:l(\d+))?(q8)?")


def problem(text: str):
    """The function, its arguments and their names in a plan; with a latent width l, keys are raised from such rows."""
    *numbers, quantised = FORM.fullmatch(text).groups()
    b, h, g, k, d, width = (int(n or 0) for n in numbers)
    if quantised:
        names = ("q", "k", "v", "scale_k", "scale_v")
        return quantised_cache.attention, quantised_cache.tensors(b, h, h // g, 1, k, d), names
    sizes = [(b, h, 1, d), (b, k, width), *[(h, width, d)] * 2] if width else [(b, h, 1, d), *[(b, h // g, k, d)] * 2]
    names = ("q", "c", "up_keys", "up_values") if width else ("q", "k", "v")
    scales = [math.sqrt(width) if name.startswith("up") else 1.0 for name in names]
    inputs = [torch.randn(size, dtype=torch.bfloat16, device="cuda") / x for size, x in zip(sizes, scales, strict=True)]
    return (latent if width else plain), inputs, names


def launcher(function, inputs, names, setting: str):
    """A call of the derived plan, and what is said of it; the setting is for the kernel with the longest loop."""
    region = translate(program_of(function, *(torch.empty(x.shape, dtype=x.dtype) for x in inputs)))
    plan = optimize(region.term, region.output, region.order).plan
    longest = max(plan.kernels, key=lambda kernel: max((loop.dim.size for loop in kernel.loops), default=0))
    configs = {} if setting == "default" else {longest.name: TritonConfig(*map(int, setting.split("x")))}
    made = Launcher(plan, configs)
    run = made.bind(names, inputs, {})
    return lambda: run(inputs)[0], made


def kernels_of(call) -> str:
    """Every kernel of a call and its time in µs, the cache as it is."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as found:
        for _ in range(5):
            call()
        torch.cuda.synchronize()
    return ", ".join(f"{e.key[:28]} {e.device_time:.1f}" for e in found.key_averages())


def captured(call):
    """The call as a CUDA graph: what it costs a device, without the way there."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        result = call()
    return graph.replay, result


def median_ms(call, flush: torch.Tensor, count: int = 20) -> float:
    pairs = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(count)]
    for start, end in pairs:
        flush.zero_()
        start.record()
        call()
        end.record()
    torch.cuda.synchronize()
    return statistics.median(start.elapsed_time(end) for start, end in pairs)


def host_us(call, count: int = 300) -> float:
    """What a call costs the host, while the device is behind."""
    call()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(count):
        call()
    taken = time.perf_counter() - start
    torch.cuda.synchronize()
    return taken / count * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("problems", nargs="+")
    parser.add_argument("--kernels", action="store_true", help="also the time of each kernel")
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")
    flush = torch.empty(2**28, dtype=torch.int8, device="cuda")
    for text, _, settings in (given.partition(":") for given in chosen.problems):
        torch.manual_seed(0)
        function, inputs, names = problem(text)
        wide = lambda x: x.float() if x.is_floating_point() else x
        first = [wide(x if name.startswith("up") else x[:1]) for name, x in zip(names, inputs, strict=True)]
        right = function(*first)
        cache = sum(x.nbytes for name, x in zip(names, inputs, strict=True) if name in "ckv")
        print(f"{text}: {cache / 2**20:.0f} MiB")
        grouped = {"enable_gqa": True} if function is plain and inputs[0].shape[1] > inputs[1].shape[1] else {}
        runs = {f"sdpa {n}": (sdpa(n, *inputs, **grouped), None) for n in ("cudnn", "flash") if function is plain}
        for setting in ("default", *filter(None, settings.split(","))):
            try:
                runs[setting] = launcher(function, inputs, names, setting)
            except LaunchError as reason:
                print(f"  {setting:16} {reason}")
        for name, (call, made) in runs.items():
            try:
                replay, result = captured(call)
                ms = median_ms(replay, flush)
                error = (result[:1].float() - right).abs().max().item()
            except Exception as failure:
                print(f"  {name:16} {type(failure).__name__} {' '.join(str(failure).split())[:90]}")
                continue
            note = "" if error < TOLERANCE else f"  WRONG {error:.2g}"
            how = "; ".join(x.rsplit("; ")[-1] for x in made.shared.values()) if made else ""
            how += f" ({kernels_of(call)})" if chosen.kernels else ""
            rate, host = cache / ms / 1e6, host_us(call)
            print(f"  {name:16} {ms:8.4f} ms {rate:7.0f} GB/s {host:5.0f} us{note}  {how}", flush=True)


if __name__ == "__main__":
    main()

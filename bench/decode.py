"""Few queries against a long cache on one GPU: kernels of derived plans under several settings, and SDPA's by name.

`decode.py b4h32g8k16384d128:16x64x4x3x0,...`: g queries share a key head; a setting is rows x loop x warps x stages
x parts, 0 parts for as many as fill the device. Each is compared with float32; rates are bytes of keys and values over
the median time of a captured call with a cold L2 cache.
"""

from __future__ import annotations

import argparse
import math
import re
import statistics
import sys
import warnings
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch

from onepass.bench.problems import repeated, sdpa
from onepass.capture import program_of
from onepass.lowering.triton_launch import Launcher
from onepass.lowering.tuning import Config
from onepass.pipeline import optimize
from onepass.translate import translate

TOLERANCE = 2e-2


def plain(q, k, v):
    times = q.shape[1] // k.shape[1]
    k, v = (repeated(x, times) if times > 1 else x for x in (k, v))
    return torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]), dim=-1) @ v


def shapes(text: str) -> list[tuple[int, ...]]:
    """Of queries, and of keys and values."""
    b, h, g, k, d = map(int, re.fullmatch(r"b(\d+)h(\d+)g(\d+)k(\d+)d(\d+)", text).groups())
    return [(b, h, 1, d), *[(b, h // g, k, d)] * 2]


def launcher(sizes, setting: str):
    """A call of the derived plan, and what is said of it."""
    inputs = [torch.empty(size, dtype=torch.bfloat16, device="cpu") for size in sizes]
    region = translate(program_of(plain, *inputs))
    plan = optimize(region.term, region.output, region.order).plan
    made = Launcher(plan, Config(*map(int, setting.split("x"))) if setting != "default" else None)
    return lambda *tensors: made(dict(zip("qkv", tensors))), made


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("shapes", nargs="+")
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")
    flush = torch.empty(2**28, dtype=torch.int8, device="cuda")
    for text, _, settings in (given.partition(":") for given in chosen.shapes):
        torch.manual_seed(0)
        sizes = shapes(text)
        q, k, v = (torch.randn(size, dtype=torch.bfloat16, device="cuda") for size in sizes)
        first = [repeated(x[:1].float(), q.shape[1] // x.shape[1]) for x in (q, k, v)]
        right = plain(*first)
        moved = 2 * k.numel() * k.element_size()
        print(f"{text}: {moved / 2**20:.0f} MiB")
        grouped = {"enable_gqa": True} if sizes[0][1] > sizes[1][1] else {}
        runs = {f"sdpa {name}": (sdpa(name, q, k, v, **grouped), None) for name in ("cudnn", "flash", "efficient")}
        for setting in ("default", *filter(None, settings.split(","))):
            run, made = launcher(sizes, setting)
            runs[setting] = partial(run, q, k, v), made
        for name, (call, made) in runs.items():
            try:
                replay, result = captured(call)
                ms = median_ms(replay, flush)
                error = (result[:1].float() - right).abs().max().item()
            except Exception as failure:
                print(f"  {name:24} {type(failure).__name__} {' '.join(str(failure).split())[:90]}")
                continue
            note = "" if error < TOLERANCE else f"  WRONG {error:.2g}"
            how = "; ".join(x.rsplit("; ")[-1] for x in made.shared.values()) if made else ""
            print(f"  {name:24} {ms:8.4f} ms {moved / ms / 1e6:7.0f} GB/s{note}  {how}", flush=True)


if __name__ == "__main__":
    main()

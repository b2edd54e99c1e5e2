"""Layers of public models at their real widths, unchanged: milliseconds of one forward, or with `--train` of a step.

`python bench/models.py --out FILE [--models REGEX] [--layers 2] [--train]`. Of one model and one set of weights: eager
attention compiled by torch (`compile`) and by onepass, and the library's own ways (`sdpa`, `flex`), compiled by torch.
Checked against float32 before it is timed; models are compiled side by side and timed one by one, their contestants in
turns. Run by hand; the results are in bench/results. `--device cpu` tries the script at small sizes.
"""

from __future__ import annotations

import argparse
import csv
import logging
import math
import multiprocessing
import os
import re
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from threading import BrokenBarrierError

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from models_train import Step, prepared, told
from side_by_side import Memory

import onepass
from onepass.api.backend import onepass_backend
from onepass.bench.timing import said

CONTESTANTS = {
    "onepass": ("eager", onepass_backend),
    "compile": ("eager", "inductor"),
    "sdpa": ("sdpa", "inductor"),
    "flex": ("flex_attention", "inductor"),
}
COLUMNS = ("model", "batch", "length", "contestant", "ms", "least_ms", "most_ms", "peak_mib", "error", "note")
ROUNDS, RUNS, VOCABULARY = 5, 6, 512
SHARE = 0.75  # of the device's memory, for the models that compile a training step at a time
PATIENCE = {False: 150, True: 420}  # seconds that a model waits for the others to be compiled; True: with gradients


def _ids(batch: int, length: int) -> dict:
    return {"input_ids": torch.randint(3, VOCABULARY, (batch, length))}


def _padded(batch: int, length: int) -> dict:
    """Sequences of every length from half of it."""
    ends = torch.linspace(length // 2, length, batch).long()
    return {**_ids(batch, length), "attention_mask": (torch.arange(length) < ends[:, None]).long()}


def _images(batch: int, length: int) -> dict:
    return {"pixel_values": torch.randn(batch, 3, length, length, dtype=torch.bfloat16)}


def _sound(batch: int, length: int) -> dict:
    return {"input_features": torch.randn(batch, 128, 2 * length, dtype=torch.bfloat16)}


@dataclass(frozen=True)
class Layers:
    """A model of `transformers` by the names of its classes, the sizes of one of its releases, and its inputs.

    cached: one more token behind so many of `length`, the static cache's; such a call is timed as a captured graph.
    """

    model: str
    config: str
    batch: int
    length: int
    sizes: dict
    inputs: Callable[[int, int], dict] = _ids
    call: dict = field(default_factory=lambda: {"use_cache": False})
    part: str = ""
    cached: int = 0


_TEXT = {"vocab_size": VOCABULARY, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}


def _decoder(hidden: int, heads: int, keys: int, inner: int, **more) -> dict:
    widths = {"hidden_size": hidden, "num_attention_heads": heads, "num_key_value_heads": keys}
    return {**_TEXT, **widths, "intermediate_size": inner, "max_position_embeddings": 16384, **more}


_BERT = {**_TEXT, "hidden_size": 1024, "num_attention_heads": 16, "intermediate_size": 4096}
_MLA = {"q_lora_rank": None, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
_DENSE = {"first_k_dense_replace": 99, "n_routed_experts": 4, "num_experts_per_tok": 1, "n_group": 1, "topk_group": 1}
_DEBERTA = {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "position_buckets": 256,
            "max_relative_positions": -1, "norm_rel_ebd": "layer_norm", "share_att_key": True}  # fmt: skip

MODELS = {
    "Llama 3 8B": Layers("LlamaModel", "LlamaConfig", 2, 4096, _decoder(4096, 32, 8, 14336)),
    "Qwen3 8B": Layers("Qwen3Model", "Qwen3Config", 2, 4096, _decoder(4096, 32, 8, 12288, head_dim=128)),
    "Mistral 7B": Layers("MistralModel", "MistralConfig", 1, 8192, _decoder(4096, 32, 8, 14336, sliding_window=4096)),
    "Gemma 2 9B": Layers("Gemma2Model", "Gemma2Config", 2, 4096, _decoder(3584, 16, 8, 14336, head_dim=256)),
    "GPT-OSS 20B": Layers("GptOssModel", "GptOssConfig", 1, 4096, _decoder(2880, 64, 8, 2880, head_dim=64,
        num_local_experts=2, num_experts_per_tok=1)),
    "DeepSeek-V2 Lite": Layers("DeepseekV3Model", "DeepseekV3Config", 2, 4096, _decoder(2048, 16, 16, 10944, **_MLA,
        **_DENSE)),
    "BLOOM 7B": Layers("BloomModel", "BloomConfig", 2, 2048, {**_TEXT, "hidden_size": 4096, "n_head": 32}),
    "GPT-2 XL": Layers("GPT2Model", "GPT2Config", 8, 1024, {**_TEXT, "n_embd": 1600, "n_head": 25,
        "n_positions": 1024}),
    "BERT large": Layers("BertModel", "BertConfig", 32, 512, _BERT, _padded, {}),
    "DeBERTa-v2 large": Layers("DebertaV2Model", "DebertaV2Config", 16, 512, {**_BERT, **_DEBERTA}, _padded, {}),
    "T5 large": Layers("T5EncoderModel", "T5Config", 8, 1024, {**_TEXT, "d_model": 1024, "d_ff": 4096, "num_heads": 16},
        _padded, {}),
    "ViT large": Layers("ViTModel", "ViTConfig", 64, 224, {**_BERT, "image_size": 224, "patch_size": 16}, _images, {}),
    "Whisper large": Layers("WhisperModel", "WhisperConfig", 8, 1500, {**_TEXT, "d_model": 1280, "num_mel_bins": 128,
        "encoder_attention_heads": 20, "encoder_ffn_dim": 5120, "decoder_attention_heads": 20}, _sound, {}, "encoder"),
}  # fmt: skip
MODELS |= {
    f"{name}, a token": replace(MODELS[name], batch=16, length=8192, cached=4096, call={"use_cache": True})
    for name in ("Llama 3 8B", "Qwen3 8B")
}
# Sizes for a trial on a CPU: batch 2, this length, these widths. Heads that share keys stay so where there are enough.
TINY_LENGTH = 64
TINY = {"hidden_size": 64, "d_model": 64, "n_embd": 64, "num_attention_heads": 4, "num_heads": 4, "n_head": 4,
        "encoder_attention_heads": 4, "decoder_attention_heads": 4, "intermediate_size": 128, "d_ff": 128,
        "encoder_ffn_dim": 128, "decoder_ffn_dim": 128, "head_dim": 16, "kv_lora_rank": 32, "qk_nope_head_dim": 16,
        "qk_rope_head_dim": 16, "v_head_dim": 16, "sliding_window": 32, "position_buckets": 16, "n_positions": 64,
        "image_size": 64}  # fmt: skip
DEPTHS = ("num_hidden_layers", "num_layers", "n_layer", "encoder_layers", "decoder_layers")


def tiny(layers: Layers) -> Layers:
    """The same model at sizes of a trial; one token behind a cache stays as it is, since it needs a GPU."""
    if layers.cached:
        return layers
    sizes = {name: TINY.get(name, size) for name, size in layers.sizes.items()}
    if "num_key_value_heads" in sizes:
        sharing = layers.sizes["num_attention_heads"] // sizes["num_key_value_heads"]
        sizes["num_key_value_heads"] = max(1, sizes["num_attention_heads"] // sharing)
    if "num_mel_bins" in sizes:
        sizes["max_source_positions"] = TINY_LENGTH
    return replace(layers, batch=2, length=TINY_LENGTH, sizes=sizes)


def inputs_of(layers: Layers, device: str) -> dict:
    """What the model is called with."""
    made = layers.inputs(layers.batch, 1 if layers.cached else layers.length)
    return {**{name: x.to(device) for name, x in made.items()}, **layers.call}


def without_dropout(config: object) -> None:
    """Sets every probability of dropping something to 0."""
    for name, value in list(vars(config).items()):
        if ("drop" in name) and isinstance(value, float):
            setattr(config, name, 0.0)


def built(
    layers: Layers, depth: int, attention: str, device: str = "cuda", training: bool = False
) -> torch.nn.Module:
    """The model in bfloat16 with weights by a fixed seed. training: in training mode, without dropout."""
    import transformers

    kind = getattr(transformers, layers.config)
    config = kind(**layers.sizes, attn_implementation=attention)
    for name in DEPTHS:
        if hasattr(config, name) and name not in getattr(config, "attribute_map", {}):
            setattr(config, name, depth)
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[:depth]
    if training:
        without_dropout(config)
    torch.manual_seed(0)
    with torch.device(device):
        model = getattr(transformers, layers.model)(config).train(training).to(torch.bfloat16)
    return getattr(model, layers.part) if layers.part else model


def _given(layers: Layers, model: torch.nn.Module, inputs: dict) -> dict:
    """The inputs, with a cache of its own for a model that is given one: alike for all, each call writes into it."""
    if not layers.cached:
        return inputs
    from transformers import StaticCache

    config, dtype = model.config, next(model.parameters()).dtype
    cache = StaticCache(config=config, max_cache_len=layers.length)
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    cache.early_initialization(layers.batch, config.num_key_value_heads, width, dtype, torch.device("cuda"))
    seeded = torch.Generator("cuda").manual_seed(0)
    for layer in cache.layers:
        for held in (layer.keys, layer.values):
            known = held[:, :, : layers.cached]
            known.copy_(torch.randn(known.shape, device="cuda", dtype=torch.bfloat16, generator=seeded))
        layer.cumulative_length.fill_(layers.cached)
    return {**inputs, "past_key_values": cache}


def _captured(call: Callable) -> Callable:
    """The call as one CUDA graph, so that the host's time does not count; it lives as long as what the call reads."""
    call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return lambda call=call: graph.replay()


def _result(model: Callable, inputs: dict) -> torch.Tensor:
    return model(**inputs)[0]


def _exact(layers: Layers, depth: int, inputs: dict, device: str) -> tuple[torch.Tensor, float]:
    """The first output in float32, and eager's own error."""
    with TURN:
        model = built(layers, depth, "eager", device)
        own = _result(model, _given(layers, model, inputs)).float()
        wide = {k: v.float() if torch.is_tensor(v) and v.is_floating_point() else v for k, v in inputs.items()}
        exact = _result(model.float(), _given(layers, model, wide))
        del model
        torch.cuda.empty_cache()
    return exact, _off(own, exact)


def _off(result: torch.Tensor, exact: torch.Tensor) -> float:
    """The root of the mean square: a token whose expert another rounding changes is off by as much as its size."""
    return (result.float() - exact).square().mean().sqrt().item()


def _median(call: Callable) -> float:
    if not torch.cuda.is_available():
        return statistics.median(map(_seconds, [call] * RUNS)) * 1e3
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(RUNS + 1)]
    marks[0].record()
    for mark in marks[1:]:
        call()
        mark.record()
    torch.cuda.synchronize()
    return statistics.median(a.elapsed_time(b) for a, b in pairwise(marks))


def _seconds(call: Callable) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _peak(call: Callable) -> float | str:
    """MiB above what is there before the call: weights and inputs."""
    if not torch.cuda.is_available():
        return ""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 2**20


@torch.no_grad()
def _ready(layers: Layers, inputs: dict, chosen: argparse.Namespace) -> tuple[dict[str, Callable], dict[str, dict]]:
    """The contestants that run and are right, and what is known of each."""
    depth, device = chosen.layers, chosen.device
    started, (exact, own) = time.perf_counter(), _exact(layers, depth, inputs, device)
    calls, found = {}, {}
    for name, (attention, backend) in _contestants(chosen).items():
        torch._dynamo.reset()
        try:
            model = built(layers, depth, attention, device)
            compiled, given = torch.compile(model, backend=backend, dynamic=False), _given(layers, model, inputs)
            error = _off(_result(compiled, given), exact)
            note = "" if error <= 1.5 * own else f"off by {error:.3g}, eager by {own:.3g}"
            print(layers.model, name, f"{time.perf_counter() - started:.0f} s", file=sys.stderr, flush=True)
            call = lambda compiled=compiled, given=given: compiled(**given)
            calls[name] = _captured(call) if layers.cached else call
            found[name] = {"error": f"{error:.3g} ({own:.3g})", "note": note}
        except Exception as failure:
            found[name] = {"note": said(failure)}
    return calls, found


def _told() -> str:
    """Who ran the regions, how many kernels of each, and what stayed as written."""
    regions = [region for report in onepass.reports() for region in report.regions]
    ran = [f"{region.count} by {region.ran}" for region in regions]
    left = [refusal.reason for report in onepass.reports() for refusal in report.refusals]
    return "; ".join([*ran, *left, *(note for region in regions for note in region.notes)])


def _steps(layers: Layers, inputs: dict, chosen: argparse.Namespace) -> tuple[dict[str, Step], dict[str, dict]]:
    """The contestants whose training step runs, and what is known of each."""
    build = lambda attention: built(layers, chosen.layers, attention, chosen.device, training=True)
    heads = getattr(build("eager").config, "num_attention_heads", 1)
    scores = layers.batch * heads * layers.length**2
    with COMPILING:
        return prepared(layers.model, build, inputs, layers.batch, scores, chosen.layers, _contestants(chosen), MEMORY)


def _contestants(chosen: argparse.Namespace) -> dict[str, tuple]:
    return {name: how for name, how in CONTESTANTS.items() if re.search(chosen.only, name)}


def _start(barrier, lock, compiling, memory: Memory) -> None:
    global READY, TURN, COMPILING, MEMORY
    READY, TURN, COMPILING, MEMORY = barrier, lock, compiling, memory
    import torch._inductor.config as inductor

    inductor.compile_threads = 4  # for each model
    logging.disable(logging.WARNING)
    warnings.filterwarnings("ignore")


def rows(name: str, chosen: argparse.Namespace) -> list[dict]:
    """Compiles and checks, waits for the other models, then times alone."""
    layers = tiny(MODELS[name]) if chosen.device == "cpu" else MODELS[name]
    try:
        inputs = inputs_of(layers, chosen.device)
        calls, found = (_steps if chosen.train else _ready)(layers, inputs, chosen)
        said_by_onepass = told() if chosen.train else _told()
        if "onepass" in found:
            found["onepass"]["note"] = "; ".join(filter(None, (found["onepass"]["note"], said_by_onepass)))
    except Exception as failure:
        calls, found = {}, {"onepass": {"note": said(failure)}}
    torch.cuda.empty_cache()
    with suppress(BrokenBarrierError):
        READY.wait(PATIENCE[chosen.train])
    with TURN, torch.set_grad_enabled(chosen.train):
        _timed(calls, found, chosen)
    known = {"model": name, "batch": layers.batch, "length": layers.cached or layers.length}
    return [{**known, "contestant": each, **facts} for each, facts in found.items()]


def _timed(calls: dict[str, Callable], found: dict[str, dict], chosen: argparse.Namespace) -> None:
    """Adds the figures of every contestant, whose models lie on the device as long as that takes."""
    models = [step.model for step in calls.values() if isinstance(step, Step)]
    for model in models:
        model.to(chosen.device)
    for call in calls.values() if models else ():
        call()  # what moving a model changed is settled
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(ROUNDS):
        for each, call in calls.items():
            times[each].append(_median(call))
    for each, call in calls.items():
        ms = times[each]
        found[each] |= {"ms": statistics.median(ms), "least_ms": min(ms), "most_ms": max(ms), "peak_mib": _peak(call)}
    for model in models:
        model.to("cpu")
    torch.cuda.empty_cache()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default=".", help="those whose names this pattern is found in")
    parser.add_argument("--only", default=".", help="contestants whose names this pattern is found in")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--train", action="store_true", help="a training step instead of a forward")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"), help="cpu: a trial at small sizes")
    parser.add_argument("--out", type=Path, required=True)
    chosen = parser.parse_args()
    names = [name for name in MODELS if re.search(chosen.models, name)]
    if chosen.train or chosen.device == "cpu":
        names = [name for name in names if not MODELS[name].cached]
    context = multiprocessing.get_context("spawn")
    total = math.inf if chosen.device == "cpu" else SHARE * torch.cuda.mem_get_info()[0]
    compiling = context.Semaphore(os.cpu_count() or 1)
    made = (context.Barrier(len(names)), context.Lock(), compiling, Memory.of(context, total))
    with ProcessPoolExecutor(len(names), context, _start, made) as pool, chosen.out.open("w") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        for done in as_completed([pool.submit(rows, name, chosen) for name in names]):
            for row in done.result():
                writer.writerow({k: f"{v:.5g}" if isinstance(v, float) else v for k, v in row.items()})
                shown = [row.get(name, "") for name in COLUMNS]
                print(*(f"{x:.4g}" if isinstance(x, float) else x for x in shown), flush=True)
            file.flush()


if __name__ == "__main__":
    main()

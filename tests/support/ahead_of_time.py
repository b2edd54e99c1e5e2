"""Compiles derived kernels for GPUs that are not here and prints, a JSON line each, what the compiler says of them.

It runs in a process without Triton's interpreter, under which nothing can be compiled.
"""

import json
import math
import re
import sys
from collections.abc import Iterable

import torch

from onepass.compiler.optimize import optimize_all
from onepass.egraph.terms.term import Tensor
from onepass.graph.trace import program_of
from onepass.lowering.launch.triton_compat import compile_ahead, compiler_options, contiguous, resources
from onepass.lowering.plan.queries import map_name
from onepass.lowering.plan.records import Kernel, Plan
from onepass.lowering.triton.kernel import Facts, emit
from onepass.lowering.triton.launch import default_for, load
from onepass.translate.translate import translate


def _masked(score, keep):
    return torch.where(keep, score, -math.inf)


def _places(score):
    return torch.arange(score.shape[-2])[:, None], torch.arange(score.shape[-1])


def _window(score):
    i, j = _places(score)
    return _masked(score, (j <= i) & (i - j < 256))


def _prefix(score):
    i, j = _places(score)
    return _masked(score, (j <= i) | (j < 1024))


def _globals(score):
    """A window, and a few rows and columns that see and are seen by all."""
    i, j = _places(score)
    return _masked(score, ((i - j).abs() <= 256) | (j < 64) | (i < 64))


def _alibi(score):
    i, j = _places(score)
    return score + (0.125 * (j - i)).to(score.dtype)


CHANGES = {
    "full": lambda score: score,
    "causal": lambda score: _masked(score, _places(score)[1] <= _places(score)[0]),
    "window": _window,
    "prefix": _prefix,
    "globals": _globals,
    "alibi": _alibi,
    "softcap": lambda score: 30 * torch.tanh(score / 30),
    "groups": lambda score: score,
    "ragged": lambda score: score,
    "latents": lambda score: score,
}


PRODUCTS_OF_BYTES = (("ptx", "s32.s8.s8"), ("ptx", "kind::i8"), ("amdgcn", "v_mfma_i32"))
LONG = ("i", "j", "j_0", "c", "e")


def _signed(q, k, v, of_q, of_k):
    """Queries and keys in int8, with scales by token."""
    score = (q.float() @ k.float().mT) * of_q * of_k.mT / math.sqrt(q.shape[-1])
    return torch.softmax(score, -1).to(v.dtype) @ v


BYTES = {"int8": torch.int8, "uint4": torch.uint8, "float8_e4m3fn": torch.float8_e4m3fn}


def plan_of(kind: str, width: int, dtype: str):
    """The plan derived from plain PyTorch for batch 4, 16 heads (keys: 4 in "groups"), length 4096.

    Scores and weights mixed over heads are two kernels: "states" and "mixed"; "weights" are stored by a second one.
    "positions" are those of the largest scores of one product, with these.
    "latents" are keys and values in one. Tiles of "ragged" and "latents" need not be whole.
    Keys and values of a kind in BYTES are bytes, or two numbers of four bits in each. "signed bytes" are int8 queries
    and keys, with scales by token.
    """

    def attention(q, k, v):
        k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
        return torch.softmax(CHANGES[kind](q @ k.mT / math.sqrt(width)), -1) @ v

    def latents(q, k, v):
        return attention(q, v, v)

    def of_bytes(q, k, v):
        pairs = lambda x: torch.stack([x & 15, x >> 4], -1).flatten(-2) if kind == "uint4" else x
        k, v = (pairs(x).to(q.dtype) for x in (k, v))
        return torch.softmax(q @ k.mT / math.sqrt(width), -1) @ v

    def documents(q, k, v, ids):
        same = ids[:, None, :, None] == ids[:, None, None, :]
        return torch.softmax(_masked(q @ k.mT / math.sqrt(width), same), -1) @ v

    def mixture(q, k, v, before, after):
        score = torch.einsum("hg,bgij->bhij", before, q @ k.mT / math.sqrt(width))
        return torch.einsum("hg,bgij->bhij", after, torch.softmax(score, -1)) @ v

    def dropped(q, k, v, seed):
        found = torch.softmax(CHANGES["causal"](q @ k.mT / math.sqrt(width)), -1)
        return torch.ops.onepass.dropout(found, 0.1, seed) @ v

    def weights(q, k, v):
        found = torch.softmax(q @ k.mT / math.sqrt(width), -1)
        return found @ v, found

    if kind == "positions":
        given = (torch.empty(rows, width, dtype=getattr(torch, dtype)) for rows in (4096, 4096))
        return optimize_all(translate(program_of(lambda x, w: (x @ w.mT).max(-1), *given)).results).plan
    heads = (16, 4, 4) if kind == "groups" else (16, 16, 16)
    inputs = [torch.empty(4, h, 4096, width, dtype=getattr(torch, dtype)) for h in heads]
    programs = {"documents": documents, "weights": weights, "states": mixture, "mixed": mixture, "dropout": dropped}
    programs |= {"latents": latents, "signed bytes": _signed}
    programs |= dict.fromkeys(BYTES, of_bytes)
    program = programs.get(kind, attention)
    if kind in BYTES:
        shape = (4, 16, 4096, width // 2 if kind == "uint4" else width)
        inputs[1:] = [torch.empty(shape, dtype=BYTES[kind]) for _ in range(2)]
    if kind == "signed bytes":
        inputs[:2] = [x.to(torch.int8) for x in inputs[:2]]
        inputs += [torch.empty(4, 16, 4096, 1) for _ in range(2)]
    inputs += [torch.zeros(4, 4096, dtype=torch.int64)] if kind == "documents" else []
    inputs += [torch.empty(16, 16, dtype=inputs[0].dtype)] * 2 if program is mixture else []
    inputs += [torch.zeros(2, dtype=torch.int64)] if kind == "dropout" else []
    captured = translate(program_of(program, *inputs))
    return optimize_all(captured.results).plan


def compiled(target: str, kind: str, width: int, dtype: str):
    plan = plan_of(kind, width, dtype)
    kernel = plan.kernels[-1 if kind in ("mixed", "weights") else 0]
    return compiled_kernel(target, plan, kernel, () if kind in ("ragged", "latents") else LONG)


def compiled_kernel(target: str, plan: Plan, kernel: Kernel, even: Iterable[str] = LONG):
    """A kernel of a plan with its default configuration, for contiguous tensors. even: dims whose tiles are whole."""
    config = default_for(kernel, target)
    mapped = frozenset(map_name(kernel, loop) for loop in kernel.loops if loop.map)
    source = emit(kernel, plan, Facts(frozenset(even), mapped=mapped, machine=target))
    constants = {name: getattr(config, role) for name, role in source.tiles}
    tensors = {t.name: t for t in (*kernel.inputs, *(s.output for s in kernel.stores))}
    tensors |= {map_name(kernel, x): Tensor("map", "int32") for x in kernel.loops}
    types, ones, divisible = contiguous(source.arguments, tensors)
    options = {"num_warps": config.warps, "num_stages": config.stages} | compiler_options(source.text)
    return compile_ahead(load(source.text, source.function), types, constants | ones, divisible, target, options)


def said_of(case) -> dict:
    try:
        found = compiled(*case)
        alone = re.findall(r"cvt(?:\.rn)?\.(?:b?f16|f32)\.[su]\d|cvt\.bf16\.f16", found.asm.get("ptx", ""))
        said = {"shared": found.metadata.shared, "converted": len(alone)}
        said["of bytes"] = sum(found.asm.get(kind, "").count(name) for kind, name in PRODUCTS_OF_BYTES)
        if case[0] == "sm_90":
            said |= resources(found) | {"wgmma": found.asm["ptx"].count("wgmma.mma_async")}
        return said
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"[:400]}


if __name__ == "__main__":
    for case in json.loads(sys.argv[1]):
        print(json.dumps([case, said_of(case)]), flush=True)

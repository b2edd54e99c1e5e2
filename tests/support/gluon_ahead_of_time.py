"""Compiles Gluon kernels of derived plans for sm_90 without a GPU and prints what ptxas says of each, as JSON lines.

It runs in a process without Triton's interpreter. By hand: `python tests/support/gluon_ahead_of_time.py full 128`,
or with `backward` behind it.
"""

import json
import math
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import torch

from onepass.compiler import compiled_region
from onepass.compiler.optimize import optimize_all
from onepass.compiler.options import Options
from onepass.graph.trace import program_of
from onepass.lowering.gluon.kernel import emit
from onepass.lowering.gluon.launch import SuitedTensors, fits, fitting, options_of, prepare
from onepass.lowering.hopper.kernel_form import bind, sent
from onepass.lowering.hopper.mask_words import packed
from onepass.lowering.hopper.split_states import with_split_states
from onepass.lowering.hopper.stored_values import with_stored_values
from onepass.lowering.joined.form import bind_joined
from onepass.lowering.joined.join import join
from onepass.lowering.joined.kernel import emit_joined
from onepass.lowering.joined.launch import config_of, prepare_joined
from onepass.lowering.launch.triton_compat import compile_ahead, contiguous, resources, tensor_map_type
from onepass.lowering.plan.device import H200
from onepass.lowering.triton.launch import load
from onepass.training.plans import training
from onepass.translate.translate import translate

ROOT = Path(__file__).resolve().parents[2]
BATCH, HEADS, LENGTH = 2, 8, 4096


def _places(score):
    rows, columns = (torch.arange(n, device=score.device) for n in score.shape[-2:])
    return rows[:, None], columns


def _keep(score, where):
    i, j = _places(score)
    return torch.where(where(i, j), score, -math.inf)


def _alibi(score):
    i, j = _places(score)
    slope = torch.exp2(-torch.arange(1, score.shape[-3] + 1, device=score.device).to(torch.float32))[:, None, None]
    return score + (slope * (j - i)).to(score.dtype)


def _slanted(score):
    """Sums of coordinates with a part of the row's own, under a mask."""
    i, j = _places(score)
    slanted = (score - 0.03 * (3 * j - 2 * i + 7).float() + 0.01 * i.float()) * 0.7
    return torch.where(j <= i, slanted.to(score.dtype), -math.inf)


CHANGES = {
    "full": lambda score: score,
    "causal": lambda score: _keep(score, lambda i, j: j <= i),
    "window": lambda score: _keep(score, lambda i, j: (j <= i) & (i - j < 256)),
    "prefix": lambda score: _keep(score, lambda i, j: (j <= i) | (j < 1024)),
    "longformer": lambda score: _keep(score, lambda i, j: ((i - j).abs() <= 256) | (j < 64) | (i < 64)),
    "dilated": lambda score: _keep(score, lambda i, j: ((i - j).abs() <= 512) & ((i - j) % 2 == 0)),
    "strided": lambda score: _keep(score, lambda i, j: (i - j) % 3 == 0),
    "shifted": lambda score: _keep(score, lambda i, j: j <= i - 200),
    "alibi": _alibi,
    "slanted": _slanted,
    "softcap": lambda score: 30 * torch.tanh(score / 30),
    "capped": lambda score: _keep(20 * torch.tanh(score / 2), lambda i, j: (j <= i) & (i - j < 200)),
    "gated": lambda score: score * torch.sigmoid(score),
    "groups": lambda score: score,
    "hidden": lambda score: _keep(score, lambda i, j: (j <= i) & (i - j < 200)),
}


def of_bytes(kind: str):
    """Attention whose tensors are e4m3, or its queries and keys; or these are int8, with scales by token or head."""

    def signed(q, k, v, of_q, of_k):
        score = (q.float() @ k.float().mT) * of_q * of_k.mT / math.sqrt(q.shape[-1])
        return torch.softmax(score, -1).to(v.dtype) @ v

    def attention(q, k, v):
        score = (q.float() @ k.float().mT) / math.sqrt(q.shape[-1])
        score = _keep(score, lambda i, j: j <= i) if kind == "causal bytes" else score
        return (torch.softmax(score, -1) @ v.float()).to(torch.bfloat16)

    return signed if kind in SIGNED_BYTES else attention


SIGNED_BYTES = ("signed bytes", "bytes of heads")
OF_BYTES = ("bytes", "causal bytes")  # queries, keys, values and weights of one byte; the other way has values of two


def plain(kind: str):
    """Attention in plain PyTorch; the tensors after v are biases."""

    def attention(q, k, v, *more):
        k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, k if kind == "shared" else v))
        score = q @ k.mT / math.sqrt(q.shape[-1])
        if kind in ("bias", "dense", "hidden", "vector"):
            score = score + more[0]
        if kind in ("relative", "backwards"):
            rows, columns = _places(score)
            ahead = columns - rows + score.shape[-2] - 1
            score = score + more[0][:, ahead if kind == "relative" else score.shape[-1] + score.shape[-2] - 2 - ahead]
        if kind == "documents":
            score = torch.where(more[0][:, None] == more[0], score, -math.inf)
        if kind in ("boolean", "blocks", "joined"):
            score = score.masked_fill(~more[0], -math.inf)
        if kind == "padding":
            score = score.masked_fill(~more[0][:, None, None], -math.inf)
        if kind in ("padded", "drawn"):
            kept = more[0][:, None, None] if kind == "padded" else more[0]
            kept = kept & (_places(score)[1] <= _places(score)[0])
            score = score + torch.where(kept, 0.0, torch.finfo(score.dtype).min).to(score.dtype)
        if kind == "joined":
            score = torch.where(more[1][:, None, :, None] == more[1][:, None, None], score, -math.inf)
        return torch.softmax(CHANGES.get(kind, CHANGES["full"])(score), -1) @ v

    def difference(q, k, v):
        (one, two), (left, right) = q.chunk(2, 1), k.chunk(2, 1)
        scale = math.sqrt(q.shape[-1])
        return torch.softmax(one @ left.mT / scale, -1) @ v - 0.2 * torch.softmax(two @ right.mT / scale, -1) @ v

    def both(q, k, v):
        score = (q @ k.mT).float() / math.sqrt(q.shape[-1])
        out = torch.softmax(score, -1).to(q.dtype) @ v
        return out, score.amax(-1) if kind == "peak" else torch.logsumexp(score, -1)

    def evoformer(q, k, v, one, two):
        score = q @ k.mT / math.sqrt(q.shape[-1]) + one[:, :, None, None] + two[:, None]
        return torch.softmax(score, -1) @ v

    def gate(q, k, v, one):
        return torch.sigmoid(one) * attention(q, k, v)

    def dropped(q, k, v, seed):
        score = _keep(q @ k.mT / math.sqrt(q.shape[-1]), lambda i, j: j <= i)
        return torch.ops.onepass.dropout(torch.softmax(score, -1), 0.1, seed) @ v

    def sigmoid(q, k, v):
        return torch.sigmoid(q @ k.mT / math.sqrt(q.shape[-1]) - math.log(k.shape[-2])) @ v

    def nearest(q, k, norms):
        """The position of the nearest key."""
        return (norms - 2 * (q @ k.mT)).argmin(-1)

    others = {"gate": gate, "sigmoid": sigmoid, "difference": difference, "logarithm": both, "peak": both}
    others |= {kind: of_bytes(kind) for kind in (*OF_BYTES, "keys of bytes", *SIGNED_BYTES)}
    others |= {"evoformer": evoformer, "dropout": dropped, "nearest": nearest}
    return others.get(kind, attention)


def inputs_of(kind: str, width: int, dtype: str = "bfloat16", rows=LENGTH, columns=LENGTH, batch=BATCH, heads=HEADS):
    """Tensors for `plain`, of unit variance."""
    make = lambda *shape: torch.randn(*shape, dtype=torch.float32).to(getattr(torch, dtype))
    keys = heads // 4 if kind == "groups" else heads
    values = (heads // 2, 2 * width) if kind == "difference" else (keys, width // 2 if kind == "narrow" else width)
    if kind == "nearest":
        return [make(rows * batch, width), make(columns, width), make(columns)]
    if kind == "evoformer":
        operands = [make(batch, heads, n, 4, width).transpose(2, 3) for n in (rows, columns, columns)]
        return [*operands, make(batch, heads, columns), make(batch, 4, rows, columns)]
    found = [make(batch, heads, rows, width), make(batch, keys, columns, width)]
    found.append(make(batch, values[0], columns, values[1]))
    if kind in (*OF_BYTES, "keys of bytes"):
        found = [x.to(torch.float8_e4m3fn) if n < 2 or kind in OF_BYTES else x for n, x in enumerate(found)]
    if kind in SIGNED_BYTES:
        found[:2] = [torch.randint(-128, 128, x.shape, dtype=torch.int8) for x in found[:2]]
        lengths = (rows, columns) if kind == "signed bytes" else (1, 1)
        found += [torch.rand(batch, heads, n, 1) * 0.01 + 0.005 for n in lengths]
    if kind == "bias":
        found.append(make(heads, rows, columns))
    if kind in ("dense", "hidden"):
        found.append(make(batch, heads, rows, columns))
    if kind == "dropout":
        found.append(torch.zeros(2, dtype=torch.int64))
    if kind == "gate":
        found.append(make(batch, heads, rows, width))
    if kind in ("relative", "backwards"):
        found.append(make(heads, rows + columns - 1))
    if kind == "vector":
        found.append(make(batch, 1, 1, columns))
    if kind == "documents":
        found.append((torch.arange(columns) * 12 // columns).to(torch.int32))
    if kind in ("boolean", "blocks", "joined", "drawn"):
        side, part = (128, 0.1) if kind == "blocks" else (1, 0.5)
        drawn = (torch.rand(-(-rows // side), -(-columns // side)) < part).repeat_interleave(side, 0)
        places = torch.arange(rows)[:, None], torch.arange(columns)
        found.append(drawn.repeat_interleave(side, 1)[:rows, :columns] | (places[0] == places[1]))
    if kind in ("padding", "padded"):
        lengths = columns - torch.arange(batch) * (columns // (2 * batch))
        found.append(torch.arange(columns) < lengths[:, None])
    if kind == "joined":
        found.append((torch.arange(max(rows, columns)) * torch.tensor([[3], [7]]) // columns).to(torch.int32))
    return found


def plan_of(kind: str, width: int, dtype: str = "bfloat16", **sizes):
    captured = translate(program_of(plain(kind), *inputs_of(kind, width, dtype, **sizes)))
    return replace(optimize_all(captured.results).plan, weights="e4m3" if kind in OF_BYTES else "half")


def backward_plan_of(kind: str, width: int, dtype: str = "bfloat16", **sizes):
    """The plan of the gradients of all floating inputs. Raises ValueError where they are not derived."""
    return backward_plan(plain(kind), inputs_of(kind, width, dtype, **sizes))


def backward_plan(function, inputs):
    """The plan of the gradients of all floating inputs. Raises ValueError where they are not derived."""
    found = compiled_region.make(program_of(function, *inputs), Options(), (), {})
    made = training(found.text, [x.is_floating_point() for x in inputs])
    if isinstance(made, str):
        raise ValueError(made)
    return made.every.region.plan


def joined_source_of(plan, config=None):
    """(binding, settings, source) of the joined kernel of a plan. Raises ValueError where there is none."""
    for written in ((True, True), (True, False), ()):
        found, settings = join(plan, *written), config
        binding = "no two kernels compute the same tiles" if found is None else bind_joined(found.main)
        settings = binding if isinstance(binding, str) else config or config_of(binding)
        if not isinstance(settings, str):
            break
    else:
        raise ValueError(settings)
    config = settings
    call = prepare_joined(binding, config, without_memory(binding.kernel), {}, H200.multiprocessors)
    return binding, config, emit_joined(binding, found.plan, config, call.shape)


def tensors_of(kernel):
    """The tensors of a kernel by name."""
    return {t.name: t for t in (*kernel.inputs, *(s.output for s in kernel.stores))}


def without_memory(kernel):
    """Tensors on the meta device for those of a kernel, by name."""
    make = lambda t: torch.empty(t.shape, dtype=getattr(torch, t.dtype), device="meta")
    return {name: make(t) for name, t in tensors_of(kernel).items()}


def said_apart(script: str, cases: list) -> list[dict]:
    """What a script of this folder says of each case, in a process without Triton's interpreter."""
    command = [sys.executable, str(ROOT / "tests" / "support" / script), json.dumps(cases)]
    done = subprocess.run(command, capture_output=True, text=True, env=without_interpreter())
    said = [json.loads(line)[1] for line in done.stdout.splitlines() if line.startswith("[")]
    assert len(said) == len(cases), done.stderr[-1000:]
    return said


def without_interpreter() -> dict[str, str]:
    """The environment of a process that compiles kernels, which Triton's interpreter would run."""
    kept = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    return kept | {"PYTHONPATH": os.pathsep.join([str(ROOT), kept.get("PYTHONPATH", "")])}


def source_of(plan, schedule=None, number: int = -1):
    """(binding, schedule, source) of a plan's last kernel, or of one by number. Raises ValueError where it does not
    bind."""
    kernel = with_split_states(with_stored_values(plan), fits).kernels[number]
    binding = bind(kernel)
    if isinstance(binding, str):
        raise ValueError(binding)
    schedule = schedule or fitting(binding, {}, binding.overlays)
    exits = sent(binding) if schedule.send else ()
    tensors = SuitedTensors(binding.overlays, exits, diagonals=binding.diagonals, packed=packed(binding))
    shape = prepare(binding, schedule, {}, tensors).shape
    return binding, schedule, emit(binding, plan, schedule, shape)


def compiled(plan, schedule=None, number: int = -1):
    binding, schedule, source = source_of(plan, schedule, number)
    return schedule, source, compiled_source(source, tensors_of(binding.kernel), options_of(schedule, source.text))


def compiled_source(source, tensors, options):
    """A Gluon source compiled for sm_90."""
    types, constants, divisible = contiguous(source.arguments, tensors)
    divisible = (*divisible, *({"visits", "words"} & set(load(source.text, source.function).arg_names)))
    types |= {m.name: tensor_map_type(m.box, tensors[m.tensor].dtype) for m in source.maps}
    types |= {"items": "*i32", "visits": "*i32", "words": "*i32", "total": "i32"}
    function = load(source.text, source.function)
    return compile_ahead(function, types, constants, divisible, "sm_90", options)


def data_over_barriers(ptx: str) -> list[int]:
    """Offsets in shared memory that are a barrier's, and where other data begin."""
    places = dict(re.findall(r"add\.s32 \t(%r\d+), %r\d+, (\d+);", ptx))
    barriers = {int(places[name]) for name in re.findall(r"mbarrier\.init\S* \[(%r\d+)\]", ptx)}
    assert barriers
    data = re.findall(r"(?:st|ld|stmatrix|ldmatrix)\.\S*shared\S* \t.*\[%r\d+\+(\d+)\]", ptx)
    return sorted(barriers & {int(offset) for offset in data})


def said_of(kind: str, width: int, direction: str = "forward") -> dict:
    try:
        if direction == "backward":
            binding, schedule, source = joined_source_of(backward_plan_of(kind, width))
            found = compiled_source(source, tensors_of(binding.kernel), {"num_warps": 4})
        else:
            schedule, _, found = compiled(plan_of(kind, width))
        products = found.asm["ptx"].count("wgmma.mma_async")
        over = data_over_barriers(found.asm["ptx"])
        of_bytes = found.asm["ptx"].count("s32.s8.s8")
        said = {"schedule": str(schedule), **resources(found), "wgmma": products, "over_barriers": over}
        return said | {"of_bytes": of_bytes}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"[:600]}


if __name__ == "__main__":
    cases = json.loads(sys.argv[1]) if len(sys.argv) == 2 else [[sys.argv[1], int(sys.argv[2]), *sys.argv[3:]]]
    for case in cases:
        print(json.dumps([case, said_of(*case)]), flush=True)

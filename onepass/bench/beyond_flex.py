"""What FlexAttention cannot say, as data: plain PyTorch functions and the tensors they take.

A Form is one such function; its peers are torch.compile and eager, which take the same function. Tensors whose first
axis is the batch come first, so that one sequence is a smaller problem.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional

from .problems import BenchProblem, Shape, normal, repeated
from .scales import Scale


def _none(shape: Shape, device, dtype) -> tuple:
    return ()


def _heads(shape: Shape) -> list[tuple[int, ...]]:
    """Queries, keys and values, [H, S, D] each."""
    few = shape.heads // shape.group
    key = (few, shape.keys, shape.width)
    return [(shape.heads, shape.length, shape.width), key, key]


def _scores(shape: Shape) -> int:
    return shape.batch * shape.heads * shape.length * shape.keys


@dataclass(frozen=True)
class Form:
    """`function(*batched, *shared)`; batched: the sizes behind the batch axis; elements: of the scores as written.

    width: the multiplications and additions of an element, by two, in products over or with the scores; 2 D if 0.
    """

    function: Callable
    batched: Callable[[Shape], list[tuple[int, ...]]] = _heads
    shared: Callable = _none
    elements: Callable[[Shape], int] = _scores
    width: int = 0


def form(given: Form, shape: Shape, device: str, dtype: torch.dtype) -> BenchProblem:
    """A form at a shape; its parts are the sequences of the batch."""
    own = tuple(normal(shape.batch, *sizes, device=device, dtype=dtype) for sizes in given.batched(shape))
    shared = tuple(given.shared(shape, device, dtype))
    elements = given.elements(shape)

    def cut(number: int):
        one = slice(number, number + 1)
        return (*(x[one] for x in own), *shared), (one,)

    flops = 2.0 * elements * (given.width or 2 * shape.width)
    return BenchProblem(given.function, (*own, *shared), flops, elements, shape.batch, cut)


def normals(*sizes: Callable[[Shape], tuple[int, ...]]) -> Callable:
    """Shared tensors of random numbers, of sizes that the shape gives."""
    return lambda shape, device, dtype: [normal(*size(shape), device=device, dtype=dtype) for size in sizes]


# Scores and what becomes of them --------------------------------------------------------------------------------------


def _score(q, k):
    return q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])


def _distance(q, k):
    rows, columns = (torch.arange(x.shape[-2], device=x.device) for x in (q, k))
    return rows[:, None] - columns[None, :]


def sinks(q: Tensor, k: Tensor, v: Tensor, sink: Tensor) -> Tensor:
    """GPT-OSS: grouped queries, causal, and a learned logit beside each row's scores that takes its share."""
    times = q.shape[1] // k.shape[1]
    k, v = repeated(k, times), repeated(v, times)
    score = _score(q, k).masked_fill(_distance(q, k) < 0, float("-inf"))
    column = sink.reshape(1, -1, 1, 1).expand(score.shape[0], -1, score.shape[2], -1)
    both = torch.cat([score, column], dim=-1)
    both = both - both.max(dim=-1, keepdim=True).values
    return torch.softmax(both, dim=-1)[..., :-1] @ v


def softmax_plus_one(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    score = _score(q, k)
    top = score.amax(-1, keepdim=True).clamp(min=0)
    weight = torch.exp(score - top)
    return weight / (torch.exp(-top) + weight.sum(-1, keepdim=True)) @ v


def sigmoid(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.sigmoid(_score(q, k) - math.log(k.shape[-2])) @ v


def relu_squared(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return functional.relu(_score(q, k)).square() / k.shape[-2] @ v


def retention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    far = _distance(q, k)
    decay = 1.0 - torch.exp2(-5.0 - torch.arange(q.shape[1], device=q.device))
    rate = torch.where(far >= 0, decay[:, None, None] ** far.clamp(min=0), 0.0)
    return (q @ k.transpose(-1, -2) * rate).to(v.dtype) @ v


def linear(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Written with its scores, which a reassociation never makes."""
    q, k = functional.elu(q) + 1, functional.elu(k) + 1
    weight = q @ k.transpose(-1, -2)
    return (weight @ v) / weight.sum(-1, keepdim=True)


def cosine(q: Tensor, k: Tensor, v: Tensor, temperature: Tensor) -> Tensor:
    q, k = functional.normalize(q, dim=-1), functional.normalize(k, dim=-1)
    scale = temperature.clamp(max=math.log(100.0)).exp()
    return torch.softmax(q @ k.transpose(-1, -2) * scale, dim=-1) @ v


def _normed(x, weight):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * weight


def _turned(x, cos, sin):
    left, right = x.chunk(2, -1)
    return x * cos + torch.cat([-right, left], -1) * sin


def norm_and_rope(q: Tensor, k: Tensor, v: Tensor, of_q: Tensor, of_k: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    q, k = _turned(_normed(q, of_q), cos, sin), _turned(_normed(k, of_k), cos, sin)
    return torch.softmax(_score(q, k).masked_fill(_distance(q, k) < 0, float("-inf")), dim=-1) @ v


def _angles(shape: Shape, device, dtype) -> tuple[torch.Tensor, ...]:
    """The norms' weights, then cosines and sines [S, D]."""
    rate = 10000.0 ** (-torch.arange(0, shape.width, 2, device=device) / shape.width)
    angle = (torch.arange(shape.length, device=device)[:, None] * rate).repeat(1, 2)
    ones = (1 + 0.1 * normal(shape.width, device=device, dtype=dtype) for _ in range(2))
    return (*ones, angle.cos().to(dtype), angle.sin().to(dtype))


def gate(q: Tensor, k: Tensor, v: Tensor, gate: Tensor) -> Tensor:
    return torch.sigmoid(gate) * (torch.softmax(_score(q, k), dim=-1) @ v)


def log_sum_exp(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
    score = _score(q, k)
    return torch.softmax(score, dim=-1) @ v, score.logsumexp(-1)


def two_key_sets(q: Tensor, k1: Tensor, v1: Tensor, k2: Tensor, v2: Tensor) -> Tensor:
    weight = torch.softmax(torch.cat([_score(q, k1), _score(q, k2)], -1), dim=-1)
    return weight[..., : k1.shape[-2]] @ v1 + weight[..., k1.shape[-2] :] @ v2


def talking_heads(q: Tensor, k: Tensor, v: Tensor, before: Tensor, after: Tensor) -> Tensor:
    score = torch.einsum("hg,bgij->bhij", before, _score(q, k))
    return torch.einsum("hg,bgij->bhij", after, torch.softmax(score, dim=-1)) @ v


def latent(q: Tensor, c: Tensor, up_keys: Tensor, up_values: Tensor) -> Tensor:
    """MLA: keys and values of every head are raised from one latent row."""
    k = torch.einsum("bjc,hcd->bhjd", c, up_keys)
    v = torch.einsum("bjc,hcd->bhjd", c, up_values)
    return torch.softmax(_score(q, k), dim=-1) @ v


def of_heads(scale: Scale) -> dict[str, Form]:
    """Of queries, keys and values [B, H, S, D]; those with a name in `SHAPES` have a shape of their own."""
    row = lambda shape: (shape.heads, shape.length, shape.width)
    up = lambda shape: (shape.heads, scale.latent, shape.width)
    mix = lambda shape: (shape.heads, shape.heads)
    half = lambda shape: (shape.heads, shape.keys // 2, shape.width)
    compressed = lambda shape: [row(shape), (shape.keys, scale.latent)]
    raised = lambda shape, device, dtype: [x / math.sqrt(scale.latent) for x in normals(up, up)(shape, device, dtype)]
    return {
        "sinks": Form(sinks, shared=normals(lambda shape: (shape.heads,))),
        "softmax_plus_one": Form(softmax_plus_one),
        "sigmoid": Form(sigmoid),
        "relu_squared": Form(relu_squared),
        "retention": Form(retention),
        "linear": Form(linear),
        "cosine": Form(cosine, shared=normals(lambda shape: (shape.heads, 1, 1))),
        "norm_and_rope": Form(norm_and_rope, shared=_angles),
        "gate": Form(gate, lambda shape: [*_heads(shape), row(shape)]),
        "log_sum_exp": Form(log_sum_exp),
        "two_key_sets": Form(
            two_key_sets,
            lambda shape: [*_heads(shape), half(shape), half(shape)],
            elements=lambda shape: _scores(replace(shape, columns=shape.keys + shape.keys // 2)),
        ),
        "talking_heads": Form(talking_heads, shared=normals(mix, mix)),
        "latent": Form(latent, compressed, raised),
        "latent_decode": Form(latent, compressed, raised),
    }


# Structures -----------------------------------------------------------------------------------------------------------


def evoformer_rows(q: Tensor, k: Tensor, v: Tensor, gate: Tensor, line: Tensor, pair: Tensor) -> Tensor:
    """[B, N, S, H, D]: attention along S with a bias per row and one for all rows, gated."""
    q, k, v, gate = (x.transpose(-2, -3) for x in (q, k, v, gate))
    score = _score(q, k) + line[:, :, None, None, :] + pair[:, None]
    return (torch.sigmoid(gate) * (torch.softmax(score, dim=-1) @ v)).transpose(-2, -3)


def evoformer_columns(q: Tensor, k: Tensor, v: Tensor, gate: Tensor, line: Tensor) -> Tensor:
    q, k, v, gate = (x.permute(0, 2, 3, 1, 4) for x in (q, k, v, gate))
    score = _score(q, k) + line.transpose(1, 2)[:, :, None, None, :]
    return (torch.sigmoid(gate) * (torch.softmax(score, dim=-1) @ v)).permute(0, 3, 1, 2, 4)


def triangle_start(q: Tensor, k: Tensor, v: Tensor, gate: Tensor, bias: Tensor) -> Tensor:
    """[B, I, K, H, D]: from every start i, over k; the bias is that of the edge (j, k)."""
    score = torch.einsum("bijhd,bikhd->bhijk", q, k) / math.sqrt(q.shape[-1]) + bias[:, :, None]
    return torch.sigmoid(gate) * torch.einsum("bhijk,bikhd->bijhd", torch.softmax(score, dim=-1), v)


def triangle_end(q: Tensor, k: Tensor, v: Tensor, gate: Tensor, bias: Tensor) -> Tensor:
    score = torch.einsum("bijhd,bkjhd->bhijk", q, k) / math.sqrt(q.shape[-1])
    score = score + bias.transpose(-1, -2)[:, :, :, None]
    return torch.sigmoid(gate) * torch.einsum("bhijk,bkjhd->bijhd", torch.softmax(score, dim=-1), v)


def invariant_points(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_points: Tensor,
    k_points: Tensor,
    v_points: Tensor,
    pair_bias: Tensor,
    pair: Tensor,
    weight: Tensor,
) -> tuple[Tensor, ...]:
    """IPA: scalars, points in space and pairs under one softmax, with all three results."""
    score = torch.einsum("bihc,bjhc->bhij", q, k) / math.sqrt(q.shape[-1]) + pair_bias.permute(0, 3, 1, 2)
    apart = (q_points[:, :, None] - k_points[:, None]).square().sum((-1, -2))
    score = score - 0.5 * functional.softplus(weight)[:, None, None] * apart.permute(0, 3, 1, 2)
    weights = torch.softmax(score * math.sqrt(1 / 3), dim=-1)
    scalars = torch.einsum("bhij,bjhc->bihc", weights, v)
    points = torch.einsum("bhij,bjhpx->bihpx", weights, v_points)
    return scalars, points, torch.einsum("bhij,bijc->bihc", weights, pair)


POINTS, VALUE_POINTS, PAIR = 4, 8, 128  # of AlphaFold 2


def _residues(shape: Shape) -> list[tuple[int, ...]]:
    n, h = shape.length, shape.heads
    points = [(n, h, count, 3) for count in (POINTS, POINTS, VALUE_POINTS)]
    return [*[(n, h, shape.width)] * 3, *points, (n, n, h), (n, n, PAIR)]


def structures() -> dict[str, Form]:
    """Of AlphaFold: four attentions on a square of rows, [B, S, S, H, D], and the invariant points."""
    square = lambda shape: [(shape.length, shape.length, shape.heads, shape.width)] * 4
    line = lambda shape: (shape.length, shape.length)
    pair = lambda shape: (shape.heads, shape.length, shape.length)
    lines = lambda shape: shape.length * _scores(shape)
    return {
        "evoformer_rows": Form(evoformer_rows, lambda s: [*square(s), line(s), pair(s)], elements=lines),
        "evoformer_columns": Form(evoformer_columns, lambda s: [*square(s), line(s)], elements=lines),
        "triangle_start": Form(triangle_start, lambda s: [*square(s), pair(s)], elements=lines),
        "triangle_end": Form(triangle_end, lambda s: [*square(s), pair(s)], elements=lines),
    }


def additive(q: Tensor, k: Tensor, v: Tensor, weight: Tensor) -> Tensor:
    """Bahdanau's: a small network of each pair of a query and a key."""
    return torch.softmax(torch.tanh(q[..., None, :] + k[..., None, :, :]) @ weight, dim=-1) @ v


def gaussian(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Kernel regression: weights fall with the distance."""
    weights = torch.exp(-(q[..., None, :] - k[..., None, :, :]).square().mean(-1))
    return (weights / weights.sum(-1, keepdim=True)) @ v


def graph(h: Tensor, own: Tensor, neighbour: Tensor, edges: Tensor) -> Tensor:
    """GAT, dense: scores of two numbers, kept where there is an edge."""
    score = functional.leaky_relu(own[..., None] + neighbour[..., None, :], 0.2)
    return torch.softmax(score.masked_fill(edges <= 0, -math.inf), dim=-1) @ h


def pairs() -> dict[str, Form]:
    """Scores that no product makes, of each pair point by point."""
    nodes = lambda s: [(s.heads, s.length, s.width), *[(s.heads, s.length)] * 2, (1, s.length, s.length)]
    return {
        "additive": Form(additive, shared=normals(lambda shape: (shape.width,))),
        "gaussian": Form(gaussian),
        "graph": Form(graph, nodes),
    }


# Places ---------------------------------------------------------------------------------------------------------------

MAX_DISTANCE = 64  # places away, from which on all are alike


def _vectors(table, q, k):
    """What a table holds for how far each key is from each query, [i, j, d]."""
    return functional.embedding(_distance(k, q).mT.clamp(-MAX_DISTANCE, MAX_DISTANCE) + MAX_DISTANCE, table)


def relative_keys(q: Tensor, k: Tensor, v: Tensor, table: Tensor) -> Tensor:
    """Shaw's: a key is another one for each query."""
    score = q @ k.mT + torch.einsum("bhid,ijd->bhij", q, _vectors(table, q, k))
    return torch.softmax(score / math.sqrt(q.shape[-1]), dim=-1) @ v


def relative_values(q: Tensor, k: Tensor, v: Tensor, table: Tensor, values: Tensor) -> Tensor:
    """So is a value."""
    score = q @ k.mT + torch.einsum("bhid,ijd->bhij", q, _vectors(table, q, k))
    weights = torch.softmax(score / math.sqrt(q.shape[-1]), dim=-1)
    return weights @ v + torch.einsum("bhij,ijd->bhid", weights, _vectors(values, q, k))


def relative_shift(q: Tensor, k: Tensor, v: Tensor, table: Tensor) -> Tensor:
    """Transformer-XL's: products with every distance, each row moved by a place against the next."""
    every = functional.pad(q @ table.mT, (1, 0))
    b, h, n, places = every.shape
    moved = every.view(b, h, places, n)[:, :, 1:].reshape(b, h, n, places - 1)[..., :n]
    return torch.softmax((q @ k.mT + moved) / math.sqrt(q.shape[-1]), dim=-1) @ v


def places() -> dict[str, Form]:
    """Scores, and values, by how far away a key is."""
    table = lambda s: (2 * MAX_DISTANCE + 1, s.width)
    return {
        "relative_keys": Form(relative_keys, shared=normals(table)),
        "relative_values": Form(relative_values, shared=normals(table, table)),
        "relative_shift": Form(relative_shift, shared=normals(lambda s: (s.heads, 2 * s.length - 1, s.width))),
    }


def points() -> Form:
    return Form(
        invariant_points,
        _residues,
        normals(lambda shape: (shape.heads,)),
        width=2 * 16 + 3 * (POINTS + VALUE_POINTS) + PAIR,
    )

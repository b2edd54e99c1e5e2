"""Attention with dropout in many forms: functions of (drop, q, k, v, ...), and what their dropout is with a seed.

`drop` is torch's dropout of a share, or the same with seeds that are drawn as a region's are. Shared by tests.
"""

import math

import torch
import torch.nn.functional as F

SHARE = 0.3
END_OF_SEEDS = 2**63 - 1
HEADS, ROWS, WIDTH = 6, 50, 16


def by_torch(x):
    return F.dropout(x, SHARE)


def seeds(number, count=4):
    """The seeds that a compiled function draws behind torch.manual_seed(number), one for each dropout in order."""
    torch.manual_seed(number)
    return [torch.randint(0, END_OF_SEEDS, [2]) for _ in range(count)]


def by_seeds(number, share=SHARE):
    """A dropout that takes the next of these seeds in each call."""
    left = iter(seeds(number))
    return lambda x: torch.ops.onepass.dropout(x, share, next(left))


def _scores(q, k):
    return q @ k.mT / math.sqrt(q.shape[-1])


def _hidden(scores, kept):
    return scores.masked_fill(~kept, -math.inf)


def _places(scores):
    return torch.arange(scores.shape[-2])[:, None], torch.arange(scores.shape[-1])[None]


def _causal(scores):
    rows, columns = _places(scores)
    return _hidden(scores, columns <= rows)


def plain(drop, q, k, v):
    return drop(_scores(q, k).softmax(-1)) @ v


def by_hand(drop, q, k, v):
    scores = _scores(q, k)
    weights = (scores - scores.amax(-1, keepdim=True)).exp()
    return drop(weights / weights.sum(-1, keepdim=True)) @ v


def flat_heads(drop, q, k, v):
    q, k, v = (x.flatten(0, 1) for x in (q, k, v))
    return torch.bmm(drop(torch.bmm(q, k.mT).softmax(-1)), v).unflatten(0, (-1, HEADS))


def over_columns(drop, q, k, v):
    return drop(_scores(k, q).softmax(-2)).mT @ v


def causal(drop, q, k, v):
    return drop(_causal(_scores(q, k)).softmax(-1)) @ v


def window(drop, q, k, v):
    rows, columns = _places(scores := _scores(q, k))
    return drop(_hidden(scores, (columns <= rows) & (rows - columns < 9)).softmax(-1)) @ v


def padded(drop, q, k, v, kept):
    return drop(_hidden(_scores(q, k), kept[:, None, None]).softmax(-1)) @ v


def biased(drop, q, k, v, bias):
    return drop((_scores(q, k) + bias).softmax(-1)) @ v


def slopes(drop, q, k, v, slope):
    rows, columns = _places(scores := _scores(q, k))
    return drop((scores - slope[:, None, None] * (rows - columns).abs()).softmax(-1)) @ v


def capped(drop, q, k, v):
    return drop((torch.tanh(_scores(q, k) / 5) * 5).softmax(-1)) @ v


def grouped(drop, q, k, v):
    k, v = (x[:, :2].repeat_interleave(HEADS // 2, 1) for x in (k, v))
    return drop(_causal(_scores(q, k)).softmax(-1)) @ v


def sinks(drop, q, k, v, sink):
    scores = _causal(_scores(q, k))
    more = sink[None, :, None, None].expand(*scores.shape[:-1], 1)
    return drop(torch.cat([scores, more], -1).softmax(-1))[..., :-1] @ v


def sigmoid(drop, q, k, v):
    return drop(torch.sigmoid(_scores(q, k) - 3)) @ v


def squared_relu(drop, q, k, v):
    return drop(F.relu(_scores(q, k)).square()) @ v


def retention(drop, q, k, v):
    rows, columns = _places(scores := _scores(q, k))
    decay = torch.where(columns <= rows, 0.9 ** (rows - columns).clamp(min=0).to(q.dtype), 0.0)
    return drop(scores * decay) @ v


def differential(drop, q, k, v, share):
    (a, b), (c, d) = q.chunk(2, -1), k.chunk(2, -1)
    return drop(_scores(a, c).softmax(-1) - share * _scores(b, d).softmax(-1)) @ v


def differential_of_dropped(drop, q, k, v, share):
    (a, b), (c, d) = q.chunk(2, -1), k.chunk(2, -1)
    return (drop(_scores(a, c).softmax(-1)) - share * drop(_scores(b, d).softmax(-1))) @ v


def talking_heads(drop, q, k, v, mixing):
    return torch.einsum("bhij,hg->bgij", drop(_scores(q, k).softmax(-1)), mixing) @ v


def dropped_twice(drop, q, k, v):
    return drop(drop(_scores(q, k).softmax(-1))) @ v


def dropped_scores(drop, q, k, v):
    return drop(_scores(q, k)).softmax(-1) @ v


def with_weights(drop, q, k, v):
    weights = drop(_scores(q, k).softmax(-1))
    return weights @ v, weights


def normalised_again(drop, q, k, v):
    weights = drop(_scores(q, k).softmax(-1))
    return weights / (weights.sum(-1, keepdim=True) + 1e-6) @ v


MORE = {  # the inputs behind q, k and v
    padded: lambda: [torch.rand(2, ROWS) > 0.3],
    biased: lambda: [torch.randn(HEADS, ROWS, ROWS)],
    slopes: lambda: [torch.rand(HEADS)],
    sinks: lambda: [torch.randn(HEADS)],
    differential: lambda: [torch.tensor(0.3)],
    differential_of_dropped: lambda: [torch.tensor(0.3)],
    talking_heads: lambda: [torch.randn(HEADS, HEADS)],
}
RECOMPUTED = (talking_heads,)  # its gradients are not derived
EVERY = (plain, by_hand, flat_heads, over_columns, causal, window, padded, biased, slopes, capped, grouped, sinks)
EVERY += (sigmoid, squared_relu, retention, differential, differential_of_dropped, talking_heads, dropped_twice)
EVERY += (dropped_scores, with_weights, normalised_again)


def inputs_of(function):
    """q, k and v, and what else the function takes."""
    torch.manual_seed(0)
    return [*(torch.randn(2, HEADS, ROWS, WIDTH) for _ in range(3)), *MORE.get(function, list)()]

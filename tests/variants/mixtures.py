"""What is done to scores and weights over heads, keys and queries besides masks: mixtures, shifts, gates."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from tests.variants import Variant, heads
from tests.variants.masks import scores_of

HEADS = 8


def by_each_query(q, k, v, mixture):
    """A matrix over the heads for each query, of the scores alone."""
    return torch.einsum("bihg,bgij->bhij", mixture, scores_of(q, k)).softmax(-1) @ v


def _composed(x, down, up, own):
    """Dynamically composed heads: a mixture of low rank and a diagonal one, both of the query, beside the heads."""
    low = torch.einsum("bgij,bigr->brij", x, down)
    return x + torch.einsum("brij,birh->bhij", low, up) + x * own.mT[..., None]


def composed(q, k, v, down, up, own):
    return _composed(_composed(scores_of(q, k), down, up, own).softmax(-1), down, up, own) @ v


def mixed_logarithms(q, k, v, mixture):
    """Weights as products of powers of the heads' weights."""
    return torch.einsum("hg,bgij->bhij", mixture, scores_of(q, k).log_softmax(-1)).softmax(-1) @ v


def mixed_by_broadcasting(q, k, v, mixture):
    return (mixture[:, :, None, None] * scores_of(q, k)[:, None]).sum(2).softmax(-1) @ v


def mixed_by_einsum(q, k, v, mixture):
    return torch.einsum("hg,bgij->bhij", mixture, scores_of(q, k)).softmax(-1) @ v


def several_tokens(q, k, v, weight):
    """A convolution over two queries and three keys, of each head's own, before softmax."""
    scores = scores_of(q, k)
    rows, columns = scores.shape[-2:]
    padded = F.pad(scores, (2, 0, 1, 0))
    moved = lambda a, b: padded[..., 1 - a : rows + 1 - a, 2 - b : columns + 2 - b]
    parts = [weight[:, a, b, None, None] * moved(a, b) for a in range(2) for b in range(3)]
    return sum(parts).softmax(-1) @ v


def neighbouring_heads(q, k, v, weight):
    """Each head's weights with those of the two before it, around."""
    weights = scores_of(q, k).softmax(-1)
    return sum(weight[n] * torch.roll(weights, n, 1) for n in range(3)) @ v


def chosen_heads(q, k, v, gate):
    """One result of all heads for each query, weighed by a router."""
    return torch.einsum("bih,bhid->bid", gate, scores_of(q, k).softmax(-1) @ v)


def _with(*shapes):
    return lambda: [*heads(HEADS, rows=40), *(torch.randn(*shape) / 2 for shape in shapes)]


VARIANTS = [
    Variant("heads mixed by each query", by_each_query, _with((1, 40, HEADS, HEADS)), kernels=3),
    Variant(
        "heads composed by each query",
        composed,
        _with((1, 40, HEADS, 2), (1, 40, 2, HEADS), (1, 40, HEADS)),
        kernels=3,
        passes=2,
    ),
    Variant(
        "heads mixed before softmax",
        mixed_by_einsum,
        _with((HEADS, HEADS)),
        kernels=3,
        spellings=(mixed_by_broadcasting,),
    ),
    Variant("logarithms of weights mixed", mixed_logarithms, _with((HEADS, HEADS)), kernels=4, passes=2),
    Variant("several tokens", several_tokens, _with((HEADS, 2, 3))),
    Variant("neighbouring heads", neighbouring_heads, _with((3,)), passes=2),
    Variant("chosen heads", chosen_heads, _with((1, 40, HEADS)), outside=("einsum",)),
]

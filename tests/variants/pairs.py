"""Scores that no product makes, as additive and graph attention and distances: of each pair, point by point."""

import math

import torch
import torch.nn.functional as F

from tests.variants import Variant, heads


def additive(q, k, v, weight):
    """Bahdanau's: a small network of each pair."""
    scores = torch.tanh(q[:, :, :, None] + k[:, :, None]) @ weight
    return torch.softmax(scores, -1) @ v


def additive_by_linear(q, k, v, weight):
    scores = F.linear(torch.tanh(q.unsqueeze(3) + k.unsqueeze(2)), weight[None]).squeeze(-1)
    return torch.softmax(scores, -1) @ v


def additive_summed(q, k, v, weight):
    return F.softmax((weight * (q[..., None, :] + k[..., None, :, :]).tanh()).sum(-1), dim=-1) @ v


def additive_expanded(q, k, v, weight):
    one = q.unsqueeze(3).expand(-1, -1, -1, k.shape[2], -1)
    other = k.unsqueeze(2).repeat(1, 1, q.shape[2], 1, 1)
    return torch.softmax(torch.einsum("bhijd,d->bhij", torch.tanh(one + other), weight), -1) @ v


def graph(h, own, neighbour, edges):
    """GAT, dense: a score is a sum of two numbers, and only edges keep theirs."""
    scores = F.leaky_relu(own[..., None] + neighbour[..., None, :], 0.2)
    return torch.softmax(scores.masked_fill(~edges, -math.inf), -1) @ h


def graph_filled(h, own, neighbour, edges):
    scores = F.leaky_relu(own.unsqueeze(-1) + neighbour.unsqueeze(-1).mT, 0.2)
    scores = torch.where(edges > 0, scores, -9e15 * torch.ones_like(scores))
    return torch.matmul(F.softmax(scores, dim=-1), h)


def graph_by_vectors(h, to, to_neighbour, edges):
    own, neighbour = torch.einsum("bnf,f->bn", h, to), torch.einsum("bnf,f->bn", h, to_neighbour)
    scores = F.leaky_relu(own[:, :, None] + neighbour[:, None], 0.2)
    return torch.einsum("bij,bjf->bif", torch.softmax(scores.masked_fill(~edges, -math.inf), -1), h)


def graph_of_pairs(h, own, weight, edges):
    """GATv2: the nonlinearity stands before the weights."""
    scores = F.leaky_relu(own[:, :, None] + h[:, None], 0.2) @ weight
    return torch.softmax(scores.masked_fill(~edges, -math.inf), -1) @ h


def distance(q, k, v):
    scores = -torch.cdist(q, k)
    return torch.softmax(scores, -1) @ v


def distance_by_norm(q, k, v):
    return torch.softmax(-torch.linalg.vector_norm(q[:, :, :, None] - k[:, :, None], dim=-1), -1) @ v


def distance_by_squares(q, k, v):
    return torch.softmax(-(q.unsqueeze(3) - k.unsqueeze(2)).square().sum(-1).sqrt(), -1) @ v


def gaussian(q, k, v):
    """A kernel regression: no largest score is taken, for none is above 0."""
    weights = torch.exp(-(q[:, :, :, None] - k[:, :, None]).pow(2).sum(-1) / 2)
    return (weights / weights.sum(-1, keepdim=True)) @ v


def by_largest_difference(q, k, v):
    return torch.softmax(-(q[:, :, :, None] - k[:, :, None]).abs().amax(-1), -1) @ v


def by_largest_difference_of_cdist(q, k, v):
    return torch.softmax(-torch.cdist(q, k, p=math.inf), -1) @ v


def by_absolute_differences(q, k, v):
    return torch.softmax(-(q[:, :, :, None] - k[:, :, None]).abs().sum(-1), -1) @ v


def by_absolute_differences_of_cdist(q, k, v):
    return torch.softmax(-torch.cdist(q, k, p=1.0), -1) @ v


def _edges(*shape):
    return (torch.rand(*shape) < 0.3) | torch.eye(shape[-1], dtype=torch.bool)


_small = lambda: heads(2, rows=70, columns=90)
VARIANTS = [
    Variant(
        "additive",
        additive,
        lambda: [*_small(), torch.randn(16)],
        spellings=(additive_by_linear, additive_summed, additive_expanded),
    ),
    Variant(
        "graph",
        graph,
        lambda: [torch.randn(2, 90, 16), torch.randn(2, 90), torch.randn(2, 90), _edges(2, 90, 90)],
        spellings=(graph_filled,),
    ),
    Variant(
        "graph, by vectors",
        graph_by_vectors,
        lambda: [torch.randn(2, 90, 16), torch.randn(16), torch.randn(16), _edges(2, 90, 90)],
    ),
    Variant(
        "graph, scores of pairs",
        graph_of_pairs,
        lambda: [torch.randn(2, 90, 16), torch.randn(2, 90, 16), torch.randn(16), _edges(2, 90, 90)],
    ),
    Variant("distance", distance, _small, spellings=(distance_by_norm, distance_by_squares)),
    Variant("Gaussian of a distance", gaussian, _small),
    Variant("largest difference", by_largest_difference, _small, spellings=(by_largest_difference_of_cdist,)),
    Variant("absolute differences", by_absolute_differences, _small, spellings=(by_absolute_differences_of_cdist,)),
]

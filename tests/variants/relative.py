"""Relative places as vectors: a key is another one for each query, by how far away it is (Shaw, relative keys)."""

import math

import torch
import torch.nn.functional as F

from tests.variants import Variant, heads

MOST = 40  # places away, from which on all are alike


def _places(rows, columns, device):
    """How far each key is from each query, as a row of the table."""
    apart = torch.arange(columns, device=device) - torch.arange(rows, device=device)[:, None]
    return apart.clamp(-MOST, MOST) + MOST


def relative_keys(q, k, v, table):
    """The keys of places are looked up, [i, j, d]."""
    keys = F.embedding(_places(q.shape[-2], k.shape[-2], q.device), table)
    scores = q @ k.mT + torch.einsum("bhld,lrd->bhlr", q, keys)
    return torch.softmax(scores / q.shape[-1] ** 0.5, -1) @ v


def relative_keys_by_matmul(q, k, v, table):
    b, h, n, d = q.shape
    keys = table[_places(n, k.shape[-2], q.device)]
    own = torch.matmul(q.permute(2, 0, 1, 3).reshape(n, b * h, d), keys.transpose(1, 2))
    scores = torch.matmul(q, k.transpose(-1, -2)) + own.reshape(n, b, h, -1).permute(1, 2, 0, 3)
    return torch.matmul(F.softmax(scores * d**-0.5, dim=-1), v)


def relative_keys_by_broadcasting(q, k, v, table):
    keys = table[_places(q.shape[-2], k.shape[-2], q.device)]
    scores = q @ k.mT + (q[:, :, :, None] * keys).sum(-1)
    return torch.softmax(scores / q.shape[-1] ** 0.5, -1) @ v


def relative_keys_and_queries(q, k, v, table):
    places = table[_places(q.shape[-2], k.shape[-2], q.device)]
    scores = q @ k.mT + torch.einsum("bhld,lrd->bhlr", q, places) + torch.einsum("bhrd,lrd->bhlr", k, places)
    return torch.softmax(scores / q.shape[-1] ** 0.5, -1) @ v


def relative_keys_and_values(q, k, v, table, values):
    """Shaw's: what a key adds has a vector of its place too."""
    places = _places(q.shape[-2], k.shape[-2], q.device)
    scores = q @ k.mT + torch.einsum("bhld,lrd->bhlr", q, table[places])
    weights = torch.softmax(scores / q.shape[-1] ** 0.5, -1)
    return weights @ v + torch.einsum("bhlr,lrd->bhld", weights, values[places])


def relative_keys_of_every_distance(q, k, v, table):
    """No two distances are alike, as where music is modelled."""
    places = torch.arange(k.shape[-2], device=q.device) - torch.arange(q.shape[-2], device=q.device)[:, None]
    scores = q @ k.mT + torch.einsum("bhld,hlrd->bhlr", q, table[:, places + q.shape[-2] - 1])
    return torch.softmax(scores / q.shape[-1] ** 0.5, -1) @ v


def transformer_xl(q, k, v, r):
    """Scores of a query with every distance, each row moved by one place against the next (relative shift)."""
    apart = F.pad(q @ r.mT, (1, 0))
    b, h, n, places = apart.shape
    moved = apart.view(b, h, places, n)[:, :, 1:].reshape(b, h, n, places - 1)
    return torch.softmax((q @ k.mT + moved[..., :n]) / q.shape[-1] ** 0.5, -1) @ v


def relative_shift_of_the_past(q, k, v, r):
    """Music Transformer's: only the distances back have vectors, and what a row takes from the next one is masked."""
    apart = F.pad(q @ r.mT, (1, 0))
    b, h, n, places = apart.shape
    scores = (q @ k.mT + apart.view(b, h, places, n)[:, :, 1:]) / q.shape[-1] ** 0.5
    future = torch.ones(n, n, dtype=torch.bool, device=q.device).triu(1)
    return torch.softmax(scores.masked_fill(future, -math.inf), -1) @ v


_table = lambda: torch.randn(2 * MOST + 1, 16)
VARIANTS = [
    Variant(
        "relative keys",
        relative_keys,
        lambda: [*heads(2, rows=50, columns=200), _table()],
        kernels=2,  # what the table's rows give, of queries; the attention, which reads it by place
        spellings=(relative_keys_by_matmul, relative_keys_by_broadcasting),
    ),
    Variant(
        "relative keys and queries",
        relative_keys_and_queries,
        lambda: [*heads(2, rows=50, columns=200), _table()],
        kernels=3,
    ),
    Variant(
        "relative keys of every distance",
        relative_keys_of_every_distance,
        lambda: [*heads(2, rows=50, columns=70), torch.randn(2, 119, 16)],  # one kernel: products are skewed back
    ),
    Variant(
        "relative shift (Transformer-XL)",
        transformer_xl,
        lambda: [*heads(2, rows=50, columns=50), torch.randn(2, 99, 16)],
    ),
    Variant(
        "relative shift of the past (Music Transformer)",
        relative_shift_of_the_past,
        lambda: [*heads(2, rows=50, columns=50), torch.randn(2, 50, 16)],
    ),
    Variant(
        "relative keys and values",
        relative_keys_and_values,
        lambda: [*heads(2, rows=50, columns=200), _table(), _table()],
        kernels=2,  # as relative keys; a tile's weights are skewed for what values of places add
    ),
]

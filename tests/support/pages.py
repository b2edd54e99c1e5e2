"""Programs that read keys and values by pages of a cache, each in another spelling, and hostile tables for them.

A table's row has the pages of one sequence in order. `SPELLINGS` are records: a function, what makes its inputs, and
the text of the captured load. Example: kc[table].flatten(1, 2) is read as kc[page, j % slots, head, d].
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

PAGES, SLOTS, HEADS, WIDTH, ROW = 13, 8, 2, 16, 6  # ROW: entries of a table for one sequence
GARBAGE = (2**31 - 1, -99999, PAGES, 10**9, -(2**31), -PAGES - 1)


@dataclass(frozen=True)
class Batch:
    """Queries [batch, heads, rows, width], two caches [pages, slots, heads, width], a table, and lengths."""

    q: Tensor
    kc: Tensor
    vc: Tensor
    table: Tensor
    lengths: Tensor


def batch(rows: int = 1, heads: int = 8, lengths: tuple[int, ...] = (9, ROW * SLOTS, 25), width: int = WIDTH) -> Batch:
    """Random queries and pages; a sequence may have one page several times."""
    q = torch.randn(len(lengths), heads, rows, width)
    kc, vc = torch.randn(2, PAGES, SLOTS, HEADS, width)
    return Batch(q, kc, vc, torch.randint(0, PAGES, (len(lengths), ROW)), torch.tensor(lengths))


def attend(q: Tensor, k: Tensor, v: Tensor, lengths: Tensor) -> Tensor:
    """Attention of the last rows of sequences of these lengths; heads of keys are shared by heads of queries."""
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    scores = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~kept(q, k, lengths), -math.inf)
    return scores.softmax(-1) @ v


def kept(q: Tensor, k: Tensor, lengths: Tensor) -> Tensor:
    i, j = torch.arange(q.shape[2]), torch.arange(k.shape[2])
    return j <= (lengths[:, None] - q.shape[2] + i)[:, None, :, None]


def by_index(q, kc, vc, table, lengths):
    return attend(q, *(c[table].flatten(1, 2).transpose(1, 2).to(q.dtype) for c in (kc, vc)), lengths)


def by_index_select(q, kc, vc, table, lengths):
    flat = table.flatten()
    k, v = (c.index_select(0, flat).view(len(table), -1, *c.shape[2:]).transpose(1, 2) for c in (kc, vc))
    return attend(q, k, v, lengths)


def slots_of(table: Tensor, slots: int) -> Tensor:
    return (table[:, :, None] * slots + torch.arange(slots)).flatten(1)


def by_gather(q, kc, vc, table, lengths):
    at = slots_of(table, kc.shape[1])[:, :, None, None].expand(-1, -1, *kc.shape[2:])
    every = (c.flatten(0, 1).expand(len(table), -1, -1, -1) for c in (kc, vc))
    return attend(q, *(x.gather(1, at).transpose(1, 2) for x in every), lengths)


def by_take_along_dim(q, kc, vc, table, lengths):
    at = slots_of(table, kc.shape[1])[:, :, None, None]
    return attend(q, *(torch.take_along_dim(c.flatten(0, 1)[None], at, 1).transpose(1, 2) for c in (kc, vc)), lengths)


def by_embedding(q, kc, vc, table, lengths):
    pages = (F.embedding(table, c.flatten(1)).view(len(table), -1, *c.shape[2:]) for c in (kc, vc))
    return attend(q, *(x.transpose(1, 2) for x in pages), lengths)


def by_slots(q, kc, vc, table, lengths):
    at = slots_of(table, kc.shape[1])
    return attend(q, *(c.flatten(0, 1)[at].transpose(1, 2) for c in (kc, vc)), lengths)


def heads_before_slots(q, kc, vc, table, lengths):
    return attend(q, *(c[table].transpose(1, 2).flatten(2, 3) for c in (kc, vc)), lengths)


def one_cache(q, both, table, lengths):
    return attend(q, *(both[:, n][table].flatten(1, 2).transpose(1, 2) for n in (0, 1)), lengths)


def one_gather(q, both, table, lengths):
    k, v = both[table].transpose(1, 2).flatten(2, 3).permute(1, 0, 3, 2, 4).unbind(0)
    return attend(q, k, v, lengths)


def keys_are_values(q, latent, table, lengths):
    k = latent[table].flatten(1, 2).transpose(1, 2)
    return attend(q, k, k, lengths)


def by_sdpa(q, kc, vc, table, lengths):
    k, v = (c[table].flatten(1, 2).transpose(1, 2).repeat_interleave(q.shape[1] // c.shape[2], 1) for c in (kc, vc))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=kept(q, k, lengths))


def by_grouped_sdpa(q, kc, vc, table, lengths):
    k, v = (c[table].flatten(1, 2).transpose(1, 2) for c in (kc, vc))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=kept(q, k, lengths), enable_gqa=True)


def quantised_by_token(q, kc, vc, table, lengths, ks, vs):
    k, v = ((c[table].to(q.dtype) * s[table]).flatten(1, 2).transpose(1, 2) for c, s in ((kc, ks), (vc, vs)))
    return attend(q, k, v, lengths)


def quantised_by_page(q, kc, vc, table, lengths, ks, vs):
    k, v = (c[table].to(q.dtype) * s[table][..., None, None, None] for c, s in ((kc, ks), (vc, vs)))
    return attend(q, *(x.flatten(1, 2).transpose(1, 2) for x in (k, v)), lengths)


def with_a_bias_by_page(q, kc, vc, table, lengths, bias):
    k, v = (c[table].flatten(1, 2).transpose(1, 2).repeat_interleave(q.shape[1] // c.shape[2], 1) for c in (kc, vc))
    scores = q @ k.mT / 4 + bias[table].flatten(1)[:, None, None]
    return scores.masked_fill(~kept(q, k, lengths), -math.inf).softmax(-1) @ v


def plain(x: Batch) -> tuple[Tensor, ...]:
    return x.q, x.kc, x.vc, x.table, x.lengths


def of_heads_first(x: Batch) -> tuple[Tensor, ...]:
    return plain(replace(x, kc=x.kc.transpose(1, 2).contiguous(), vc=x.vc.transpose(1, 2).contiguous()))


def of_both(x: Batch) -> tuple[Tensor, ...]:
    return x.q, torch.stack([x.kc, x.vc], 1), x.table, x.lengths


def of_one(x: Batch) -> tuple[Tensor, ...]:
    return x.q, x.kc, x.table, x.lengths


def quantised(x: Batch, *scale: int) -> tuple[Tensor, ...]:
    narrow = [(c * 30).clamp(-127, 127).to(torch.int8) for c in (x.kc, x.vc)]
    return x.q, *narrow, x.table, x.lengths, *(torch.rand(PAGES, *scale) / 30 for _ in range(2))


@dataclass(frozen=True)
class Spelling:
    """A program, its inputs from a batch, and the load of keys that must be captured. wraps: -1 is the last page."""

    function: Callable[..., Tensor]
    inputs: Callable[[Batch], tuple[Tensor, ...]] = plain
    load: str = "kc[t0, j % 8, h // 4, d]"
    wraps: bool = True

    @property
    def name(self) -> str:
        return self.function.__name__


NO_WRAP = "kc[table[b, j // 8], j % 8, h // 4, d]"
SPELLINGS = (
    Spelling(by_index),
    Spelling(by_index_select, load=NO_WRAP, wraps=False),
    Spelling(by_gather, load=NO_WRAP, wraps=False),
    Spelling(by_take_along_dim, load=NO_WRAP, wraps=False),
    Spelling(by_embedding, load=NO_WRAP, wraps=False),
    Spelling(by_slots, load="kc[t1 // 8, t1 % 8, h // 4, d]", wraps=False),
    Spelling(heads_before_slots, of_heads_first, "kc[t0, h // 4, j % 8, d]"),
    Spelling(one_cache, of_both, "both[t0, 0, j % 8, h // 4, d]"),
    Spelling(one_gather, of_both, "both[t0, 0, j % 8, h // 4, d]"),
    Spelling(keys_are_values, of_one, "latent[t0, j % 8, h // 4, d]"),
    Spelling(by_sdpa),
    Spelling(by_grouped_sdpa),
    Spelling(quantised_by_token, lambda x: quantised(x, SLOTS, HEADS, 1)),
    Spelling(quantised_by_page, lambda x: quantised(x)),
    Spelling(with_a_bias_by_page, lambda x: (*plain(x), torch.randn(PAGES, SLOTS))),
)


def hostile(x: Batch, negative: bool) -> tuple[Batch, Batch]:
    """A batch whose table has what it may have, and the same with the first page in place of what nobody reads.

    Pages that are read may be negative, entries behind a length are no pages at all, and slots behind a length are NaN
    in the first of both.
    """
    wild, tame = (replace(x, table=x.table.clone(), kc=x.kc.clone(), vc=x.vc.clone()) for _ in range(2))
    own = torch.arange(PAGES)[None, :].expand(len(x.table), -1)[:, :ROW].clone()
    for n, length in enumerate(x.lengths.tolist()):
        used = -(-length // SLOTS)
        entries = own[n, :used] + n if negative else own[n, :used]
        for table in (wild.table, tame.table):
            table[n, :used] = (entries % PAGES) - (PAGES if negative and n % 2 else 0)
        wild.table[n, used:] = torch.tensor(GARBAGE[: ROW - used])
        tame.table[n, used:] = 0
    return wild, tame


def doubled(inputs: tuple[Tensor, ...]) -> list[Tensor]:
    """The inputs in float64, for eager."""
    return [x.double() if x.is_floating_point() else x.clone() for x in inputs]

"""Programs of a server in plain PyTorch: one pass, pages read in the load, no scores in memory, and float64's result.

Slots that no sequence has are NaN, entries of the table behind a length are no pages, and pages may count from the end.
Example: four queries of each sequence over pages in int8.
"""

import math
from dataclasses import replace

import pytest
import torch

import onepass
from onepass.api.backend import onepass_backend
from tests.support.pages import PAGES, ROW, SLOTS, Batch, batch, hostile

pytestmark = pytest.mark.usefixtures("fresh")
HEADS, KEYS = 8, ROW * SLOTS


def pages_of(cache, table):
    return cache[table].flatten(1, 2).transpose(1, 2)


def age(q, lengths):
    """How far behind a query a key is."""
    i, j = torch.arange(q.shape[2]), torch.arange(KEYS)
    return (lengths[:, None] - q.shape[2] + i)[:, None, :, None] - j


def attend(q, k, v, keep, change=lambda scores: scores):
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    return change(q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~keep, -math.inf).softmax(-1) @ v


def plain(q, kc, vc, table, lengths):
    return attend(q, pages_of(kc, table), pages_of(vc, table), age(q, lengths) >= 0)


def softcap(q, kc, vc, table, lengths):
    keep, cap = age(q, lengths) >= 0, lambda scores: 3 * torch.tanh(scores / 3)
    return attend(q, pages_of(kc, table), pages_of(vc, table), keep, cap)


def window(q, kc, vc, table, lengths):
    behind = age(q, lengths)
    return attend(q, pages_of(kc, table), pages_of(vc, table), (behind >= 0) & (behind < 11))


def alibi(q, kc, vc, table, lengths, slopes):
    behind = age(q, lengths)
    slanted = lambda scores: scores - slopes[:, None, None] * behind
    return attend(q, pages_of(kc, table), pages_of(vc, table), behind >= 0, slanted)


def sinks(q, kc, vc, table, lengths, sink):
    k, v = (pages_of(c, table).repeat_interleave(q.shape[1] // c.shape[2], 1) for c in (kc, vc))
    scores = (q @ k.mT / 4).masked_fill(age(q, lengths) < 0, -math.inf)
    column = sink[None, :, None, None].expand(len(q), -1, q.shape[2], 1)
    return torch.cat([scores, column], -1).softmax(-1)[..., :-1] @ v


def scaled(q, kc, vc, table, lengths, scales):
    """Pages of one byte a number, with a scale for each head."""
    k, v = (pages_of(c, table).to(q.dtype) * s for c, s in zip((kc, vc), scales, strict=True))
    return attend(q, k, v, age(q, lengths) >= 0)


def packed_in_bytes(q, kc, vc, table, lengths, scales):
    """Two numbers of four bits in a byte."""
    unpacked = (torch.stack([c & 15, c >> 4], -1).flatten(-2).to(q.dtype) - 8 for c in (kc, vc))
    k, v = (pages_of(c, table) * s for c, s in zip(unpacked, scales, strict=True))
    return attend(q, k, v, age(q, lengths) >= 0)


def draft_tree(q, kc, vc, table, lengths, tree):
    queries = q.shape[2]
    place = torch.arange(KEYS) - (lengths - queries)[:, None]
    seen = tree[:, place.clamp(0, queries - 1)].transpose(0, 1)
    keep = (place < 0)[:, None] | ((place < queries)[:, None] & seen)
    return attend(q, pages_of(kc, table), pages_of(vc, table), keep[:, None])


def latents(q, kc, vc, table, lengths):
    """One cache without heads: its first columns are the values."""
    c = kc[:, :, 0][table].flatten(1, 2)[:, None]
    return attend(q, c, c[..., :8], age(q, lengths) >= 0)


def in_int8(cache):
    return (cache.nan_to_num() * 30).clamp(-127, 127).to(torch.int8)


def in_fp8(cache):
    return cache.to(torch.float8_e4m3fn)


def in_int4(cache):
    low, high = ((cache.nan_to_num() * 3 + 8).clamp(0, 15).to(torch.uint8)[..., n::2] for n in (0, 1))
    return low | high << 4


PROGRAMS = {
    "plain": (plain, None),
    "softcap": (softcap, None),
    "window": (window, None),
    "alibi": (alibi, None),
    "sinks": (sinks, None),
    "int8": (scaled, in_int8),
    "fp8": (scaled, in_fp8),
    "int4": (packed_in_bytes, in_int4),
    "draft tree": (draft_tree, None),
    "latents": (latents, None),
}


def with_garbage(wild: Batch, tame: Batch) -> tuple[Batch, Batch]:
    """Slots that no sequence has are NaN in the first, and 0 in the second."""
    own = torch.zeros(PAGES, SLOTS, dtype=torch.bool)
    for row, length in zip(tame.table, tame.lengths.tolist(), strict=True):
        for place in range(length):
            own[row[place // SLOTS], place % SLOTS] = True
    fill = lambda one, number: replace(one, **{n: getattr(one, n).masked_fill(~own[..., None, None], number)
                                               for n in ("kc", "vc")})  # fmt: skip
    return fill(wild, math.nan), fill(tame, 0.0)


def given(name, queries):
    """(what the program is called with, what float64 is called with)."""
    torch.manual_seed(0)
    function, narrow = PROGRAMS[name]
    pair = with_garbage(*hostile(batch(queries, HEADS, (queries, KEYS, queries + SLOTS + 1)), negative=True))
    more = {
        alibi: [torch.rand(HEADS)],
        sinks: [torch.randn(HEADS)],
        scaled: [torch.rand(2, 2, 1, 1) / 8],
        packed_in_bytes: [torch.rand(2, 2, 1, 1)],
        draft_tree: [torch.rand(queries, queries).lt(0.5).tril().fill_diagonal_(True)],
    }
    narrowed = lambda c: c if narrow is None else narrow(c)
    called, right = ([x.q, narrowed(x.kc), narrowed(x.vc), x.table, x.lengths, *more.get(function, [])] for x in pair)
    return called, [x.double() if x.dtype == torch.float32 else x for x in right]


CASES = [(name, queries) for name in PROGRAMS for queries in (1, 4, 20) if (name, queries) != ("draft tree", 1)]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("executor", ["tiled", "triton"])
@pytest.mark.parametrize(("name", "queries"), CASES)
def test_one_pass_reads_pages_in_the_load(name, queries, executor, dynamic):
    (called, right), function = given(name, queries), PROGRAMS[name][0]
    options = {"inner": "eager", "require": "all", "libraries": False, "executor": executor, "fuse_loads": "always"}
    compiled = torch.compile(function, backend=onepass_backend, options=options, dynamic=dynamic)
    found = compiled(*called)
    torch.testing.assert_close(found.double(), function(*right), rtol=1e-5, atol=1e-5)
    (region,) = onepass.reports()[-1].regions
    (kernel,) = region.kernels
    assert region.ran == executor and region.passes[1] == 1 and len(kernel.loops) == 1
    assert kernel.stores == ("output",), "no scores are stored"
    assert region.around and all("computed in the kernel" in line for line in region.around)
    if queries == 1 or (queries == 4 and not dynamic):
        assert "h_" in kernel.rows or kernel.rows == "h", "heads that share keys, and few queries, are rows of a tile"


def state(q, k, v):
    scores = q @ k.mT / q.shape[-1] ** 0.5
    return scores.softmax(-1) @ v, scores.logsumexp(-1, keepdim=True)


def in_parts(q, k, v):
    """Keys cut by a view, whose states are merged by weights."""
    batches, heads, keys, width = k.shape
    k, v = (x.view(batches, heads, 4, keys // 4, width) for x in (k, v))
    outputs, logarithms = state(q[:, :, None], k, v)
    return (outputs * logarithms.softmax(2)).sum(2)


def picked(q, k, v, blocks):
    """Blocks of 16 keys that are chosen for each head of keys: only they are read."""
    b, g, n, d = k.shape
    at = torch.arange(b)[:, None, None], torch.arange(g)[:, None], blocks
    k, v = (x.view(b, g, n // 16, 16, d)[at].flatten(2, 3) for x in (k, v))
    return attend(q, k, v, torch.ones(k.shape[2], dtype=torch.bool))


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("queries", [1, 4])
@pytest.mark.parametrize("function", [in_parts, picked])
def test_keys_in_parts_and_chosen_blocks(function, queries, dynamic):
    torch.manual_seed(0)
    heads = 4 if function is in_parts else 2
    tensors = [torch.randn(2, n, rows, 16) for n, rows in ((4, queries), (heads, 128), (heads, 128))]
    if function is picked:
        tensors.append(torch.rand(2, 2, 8).argsort(-1)[..., :3])
    options = {"inner": "eager", "require": "all", "libraries": False}
    found = torch.compile(function, backend=onepass_backend, options=options, dynamic=dynamic)(*tensors)
    right = function(*(x.double() if x.is_floating_point() else x for x in tensors))
    torch.testing.assert_close(found.double(), right, rtol=1e-5, atol=1e-5)
    (region,) = onepass.reports()[-1].regions
    assert region.passes[1] == 1 and [len(kernel.loops) for kernel in region.kernels] == [1]

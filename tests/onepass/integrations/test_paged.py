"""A step of a server in plain PyTorch: each sequence against the same attention alone, from its own keys."""

import torch

from onepass.integrations.attention import AttentionVariant, attend
from onepass.integrations.paged import paged, write

SLOTS, HEADS, GROUPS, WIDTH, WINDOW = 4, 4, 2, 8, 5


def test_each_sequence_is_as_alone_and_padded_ones_are_zero():
    torch.manual_seed(0)
    counts, lengths = [3, 1, 4, 1, 1], [9, 1, 4, 8, 0]
    caches = tuple(torch.full((12, SLOTS, GROUPS, WIDTH), 1e4, dtype=torch.float64) for _ in range(2))
    pages, table, kept = iter(torch.randperm(12).tolist()), torch.zeros(5, 3, dtype=torch.long), []
    for n, length in enumerate(lengths):
        for m in range(-(-length // SLOTS)):
            table[n, m] = next(pages)
        slots = [int(table[n, j // SLOTS]) * SLOTS + j % SLOTS for j in range(length)]
        kept.append([torch.randn(length, GROUPS, WIDTH, dtype=torch.float64) for _ in caches])
        for cache, values in zip(caches, kept[-1]):
            write(cache, values, torch.tensor(slots, dtype=torch.long))
    query = torch.randn(sum(counts), HEADS, WIDTH, dtype=torch.float64)
    starts, variant = torch.tensor([0, *counts]).cumsum(0), AttentionVariant(0.3, softcap=4.0)
    found = paged(query, caches, (table, torch.tensor(lengths), starts), (None, None), max(counts), WINDOW, variant)
    for n, (count, length) in enumerate(zip(counts, lengths)):
        own = slice(int(starts[n]), int(starts[n]) + count)
        if not length:
            assert not found[own].any()
            continue
        age = torch.arange(length - count, length)[:, None] - torch.arange(length)
        k, v = (x.transpose(0, 1)[None] for x in kept[n])
        mask = ((age >= 0) & (age < WINDOW))[None, None]
        right = attend(query[own].transpose(0, 1)[None], k, v, mask, variant=variant)[0]
        torch.testing.assert_close(found[own], right)


def test_a_negative_slot_is_not_written():
    cache = torch.zeros(3, SLOTS, GROUPS, WIDTH)
    write(cache, torch.ones(3, GROUPS, WIDTH), torch.tensor([5, -1, 6]))
    assert cache.sum() == 2 * GROUPS * WIDTH and cache[1, 1].all() and cache[1, 2].all()

"""Entries of a table behind the length of a sequence hold anything: an address made of one is in nobody's memory.

Where a guard drops elements, a load by pages asks whether the page is one. What lies behind the limits of all rows is
not read either, so that NaN in a slot that was never written stays there.
"""

from dataclasses import replace

import pytest
import torch

from onepass.lowering.triton.kernel import emit
from tests.issues.fusion.test_pages_read_in_place import close, compiled
from tests.lowering.planning.test_inline_producers import planned
from tests.support.pages import PAGES, SLOTS, batch, by_index, doubled, hostile, kept, plain

pytestmark = pytest.mark.usefixtures("fresh")
EDGES = (1, SLOTS - 1, SLOTS, SLOTS + 1, 0, 3 * SLOTS)


def at_a_distance(q, kc, vc, table, lengths):
    """Of each row the last 12 keys: pages before a window may be given away, too."""
    k, v = (c[table].flatten(1, 2).transpose(1, 2).repeat_interleave(q.shape[1] // c.shape[2], 1) for c in (kc, vc))
    last = (lengths[:, None] - q.shape[2] + torch.arange(q.shape[2]))[:, None, :, None]
    keep = kept(q, k, lengths) & (torch.arange(k.shape[2]) > last - 12)
    return (q @ k.mT / 4).masked_fill(~keep, -torch.inf).softmax(-1) @ v


def of_every_other_key(q, kc, vc, table, lengths):
    """A mask that is no range: the guard is tested at each element."""
    k, v = (c[table].flatten(1, 2).transpose(1, 2).repeat_interleave(q.shape[1] // c.shape[2], 1) for c in (kc, vc))
    keep = kept(q, k, lengths) & ((torch.arange(k.shape[2]) + torch.arange(q.shape[2])[:, None]) % 2 == 0)
    return torch.nan_to_num((q @ k.mT / 4).masked_fill(~keep, -torch.inf).softmax(-1)) @ v


def with_nan(wild, tame):
    """What no length reaches is NaN in the first batch."""
    for n, length in enumerate(wild.lengths.tolist()):
        if length % SLOTS:
            page = int(wild.table[n, length // SLOTS])
            for cache in (wild.kc, wild.vc):
                cache[page, length % SLOTS :] = torch.nan
            for cache in (tame.kc, tame.vc):
                cache[page, length % SLOTS :] = 0
    return wild, tame


def of_own_pages(x):
    """Each sequence has pages of its own."""
    own = torch.randperm(4 * PAGES)[: x.table.numel()].view(x.table.shape)
    many = [c.repeat(4, 1, 1, 1) for c in (x.kc, x.vc)]
    return replace(x, kc=many[0], vc=many[1], table=own)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("executor", ["tiled", "triton"])
@pytest.mark.parametrize(("rows", "heads"), [(1, 8), (3, 8), (20, 2)])
@pytest.mark.parametrize("function", [by_index, at_a_distance, of_every_other_key])
def test_garbage_is_never_an_address(function, rows, heads, executor):
    x = batch(rows, heads, EDGES)
    wild, tame = hostile(x, negative=True)
    with torch.no_grad():
        close(compiled(function, executor)(*plain(wild)), function(*doubled(plain(tame))))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("executor", ["tiled", "triton"])
@pytest.mark.parametrize(("rows", "heads"), [(1, 8), (20, 2)])
@pytest.mark.parametrize("function", [by_index, at_a_distance])
def test_slots_behind_a_length_may_be_nan(function, rows, heads, executor):
    lengths = (SLOTS + 1, 2 * SLOTS - 1, 3 * SLOTS + 3) if rows == 1 else (21, 30, 35)
    x = of_own_pages(batch(rows, heads, lengths))
    wild, tame = with_nan(x, replace(x, kc=x.kc.clone(), vc=x.vc.clone()))
    with torch.no_grad():
        found = compiled(function, executor)(*plain(wild))
    right = function(*doubled(plain(tame)))
    assert not right.isnan().any()
    close(found, right)


def test_only_partial_tiles_test_it():
    plan = planned(by_index, plain(batch(20, 2)))
    text = emit(plan.kernels[0], plan).text
    full, partial = text.split("    for ")[1:3]
    assert "kc_tile" in full and "mask=" not in full
    assert "kc_tile" in partial and f"<= {PAGES - 1}" in partial and "mask=" in partial


def test_a_guard_of_the_loop_alone_masks_no_load_by_pages():
    plan = planned(by_index, plain(batch(1)))
    text = emit(plan.kernels[0], plan).text
    loads = lambda part: [line for line in part.splitlines() if "c_tile" in line and "load" in line]
    full, partial = map(loads, text.split("    for ")[1:])
    assert len(full) == len(partial) == 2
    assert all("mask=" not in line for line in full)
    assert all(line.split("mask=")[1].count("&") == 1 for line in partial), "a column that exists, and that a row keeps"


def of_a_draft(q, kc, vc, table, lengths, tree):
    """The last keys are a draft's: which of them a query sees is data. Two ranges begin at the first key."""
    k, v = (c[table].flatten(1, 2).transpose(1, 2).repeat_interleave(q.shape[1] // c.shape[2], 1) for c in (kc, vc))
    place, last = torch.arange(k.shape[2]) - (lengths - q.shape[2])[:, None], q.shape[2] - 1
    keep = (place < 0)[:, None] | ((place <= last)[:, None] & tree[:, place.clamp(0, last)].transpose(0, 1))
    return (q @ k.mT / 4).masked_fill(~keep[:, None], -torch.inf).softmax(-1) @ v


def test_of_two_ranges_what_lies_behind_both_is_not_read():
    """Slots behind a length were read in the tile in which the longer range ends: NaN times a weight of 0 is NaN."""
    x = batch(4, 8, (4, SLOTS + 5, 3 * SLOTS))
    x = of_own_pages(x)
    wild, tame = with_nan(x, replace(x, kc=x.kc.clone(), vc=x.vc.clone()))
    tree = torch.ones(4, 4, dtype=torch.bool).tril()
    plan = planned(of_a_draft, (*plain(wild), tree))
    (kernel,) = plan.kernels
    assert len(kernel.loops[0].ranges) == 2
    (line,) = [line for line in emit(kernel, plan).text.splitlines() if "_limit = " in line]
    assert "_limit = tl.maximum(tl.minimum(" in line
    right = of_a_draft(*doubled(plain(tame)), tree)
    assert not right.isnan().any()
    close(compiled(of_a_draft, "triton")(*plain(wild), tree), right)

"""A step of decoding writes new keys into pages and then reads the pages: the kernel that reads them in place runs
behind the write, and a write behind it comes after.
"""

import pytest
import torch

import onepass
from tests.issues.fusion.test_pages_read_in_place import close, compiled
from tests.support.pages import PAGES, SLOTS, batch, by_index, doubled

pytestmark = pytest.mark.usefixtures("fresh")


def step(q, new_k, new_v, kc, vc, table, lengths, slot):
    kc.view(-1, *new_k.shape[1:])[slot] = new_k
    vc.view(-1, *new_v.shape[1:])[slot] = new_v
    return by_index(q, kc, vc, table, lengths)


def step_by_index_copy(q, new_k, new_v, kc, vc, table, lengths, slot):
    kc.view(-1, *new_k.shape[1:]).index_copy_(0, slot, new_k)
    vc.view(-1, *new_v.shape[1:]).index_copy_(0, slot, new_v)
    return by_index(q, kc, vc, table, lengths)


def written_behind(q, new_k, new_v, kc, vc, table, lengths, slot):
    result = by_index(q, kc, vc, table, lengths)
    kc.view(-1, *new_k.shape[1:])[slot] = new_k
    return result


def written_between(q, new_k, new_v, kc, vc, table, lengths, slot):
    """What was gathered before the write has the old keys."""
    k = kc[table]
    kc.view(-1, *new_k.shape[1:])[slot] = new_k
    k, v = (x.flatten(1, 2).transpose(1, 2).repeat_interleave(4, 1) for x in (k, vc[table]))
    return torch.softmax(q @ k.mT, -1) @ v


@pytest.mark.sampled(1)
@pytest.mark.parametrize("executor", ["tiled", "triton"])
@pytest.mark.parametrize("function", [step, step_by_index_copy, written_behind, written_between])
def test_a_hundred_steps_are_eagers(function, executor):
    x = batch()
    mine, right = (list(c) for c in ((x.kc.clone(), x.vc.clone()), (x.kc.double(), x.vc.double())))
    run = compiled(function, executor)
    for _ in range(100 if executor == "tiled" else 5):
        new = torch.randn(2, 3, *x.kc.shape[2:])
        slot = torch.randperm(PAGES * SLOTS)[:3]
        q, lengths = torch.randn_like(x.q), torch.randint(1, 49, (3,))
        with torch.no_grad():
            found = run(q, *new, *mine, x.table, lengths, slot)
        close(found, function(*doubled((q, *new)), *right, x.table, lengths, slot))
        close(mine, right)
    regions = [region for report in onepass.reports() for region in report.regions]
    assert regions and all(len(region.kernels) == 1 for region in regions)
    assert function is written_between or "kc[" in regions[0].captured

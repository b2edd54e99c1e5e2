"""Integers that did not change were taken as they had come, where other shapes of keys cut the work along another axis:
a mask for each head that came as one head's was read for both."""

import math

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh

import onepass
from tests.support.processes import as_rank, together

RANKS, LENGTH, HEADS = 2, 12, 2
SIDES = {"queries": {"q": -2}, "keys": {"k": -2, "v": -2, "kept": -1}}
KEY_HEADS = (2, 1, 2)  # of three calls: with one, the batch has more that can be cut


def attend(q, k, v, kept):
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    return torch.softmax((q @ k.mT / 3).masked_fill(~kept[:, None], -math.inf), -1) @ v


def whole(heads):
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, n, LENGTH, 8, generator=generator) for n in (HEADS, heads, heads))
    return q, k, v, torch.rand(HEADS, LENGTH, generator=generator) > 0.4


def work(rank, folder):
    with as_rank(rank, RANKS, folder):
        mesh = init_device_mesh("cpu", (RANKS,))
        mine = torch.arange(LENGTH).chunk(RANKS)[rank]
        kept = whole(HEADS)[-1][:, mine]
        for promised in (False, True):
            shared = onepass.context_parallel(attend, mesh, schedule="ulysses", together=promised, **SIDES)
            found = [shared(*(x[:, :, mine] for x in whole(heads)[:3]), kept) for heads in KEY_HEADS]
            torch.save(found, folder / f"{promised} {rank}")


@pytest.mark.slow
def test_each_call_has_its_part_of_a_mask(tmp_path):
    together(work, folder=tmp_path, ranks=RANKS)
    for promised in (False, True):
        each = [torch.load(tmp_path / f"{promised} {rank}") for rank in range(RANKS)]
        for heads, parts in zip(KEY_HEADS, zip(*each, strict=True), strict=True):
            kept = whole(HEADS)[-1]
            right = attend(*(x.double() for x in whole(heads)[:3]), kept)
            torch.testing.assert_close(torch.cat(parts, -2), right.float(), rtol=1e-5, atol=1e-5)

"""A rank without tokens raised for `require`, as nothing is fused there, and found no gradient of what is only compared
with a number, where other ranks found zeros and sent them: the ranks waited for each other."""

import math

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh

import onepass
from tests.support.processes import as_rank, together

RANKS, LENGTH = 2, 12
SIDES = {"queries": {"q": -2}, "keys": {"k": -2, "v": -2, "seen": 0}}
SCHEDULES = ("ring", "all-gather", "ulysses")


def attend(q, k, v, seen):
    return torch.softmax((q @ k.mT / 3).masked_fill(seen < 0.3, -math.inf), -1) @ v


def whole():
    generator = torch.Generator().manual_seed(0)
    q, k, v, grad = (torch.randn(1, 2, LENGTH, 8, generator=generator) for _ in range(4))
    return {"q": q, "k": k, "v": v, "seen": torch.rand(LENGTH, generator=generator)}, grad


def stepped(call, given, grad):
    own = {n: x.clone().requires_grad_() for n, x in given.items()}
    result = call(**own)
    result.backward(grad)
    return [result.detach(), *(x.grad for x in own.values())]


def work(rank, folder):
    with as_rank(rank, RANKS, folder):
        mesh = init_device_mesh("cpu", (RANKS,))
        given, grad = whole()
        mine = torch.arange(LENGTH if rank else 0)
        own = {n: x[mine] if x.ndim == 1 else x[:, :, mine] for n, x in given.items()}
        for schedule in SCHEDULES:
            shared = onepass.context_parallel(attend, mesh, schedule=schedule, require="all", **SIDES)
            torch.save(stepped(shared, own, grad[:, :, mine]), folder / f"{schedule} {rank}")


@pytest.mark.slow
def test_a_rank_may_have_none(tmp_path):
    together(work, folder=tmp_path, ranks=RANKS)
    given, grad = whole()
    own = {n: x.double().requires_grad_() for n, x in given.items()}
    right = attend(**own)
    right.backward(grad.double())
    expected = [right.detach(), *(x.grad for x in own.values())]
    for schedule in SCHEDULES:
        empty, found = (torch.load(tmp_path / f"{schedule} {rank}") for rank in range(RANKS))
        assert not any(x.numel() for x in empty)
        for mine, all_of_it in zip(found, expected, strict=True):
            zeros = torch.zeros_like(mine) if all_of_it is None else all_of_it.float()
            torch.testing.assert_close(mine, zeros, rtol=1e-5, atol=1e-5)

"""Positions of other ranks that are exchanged once: a change that torch does not count was not seen (a collective into
them, a write to a DTensor), and those that came in inference mode could not be saved for a backward. And the first call
inside of a checkpoint saved more tensors than the second one."""

import math
from itertools import product

import pytest
import torch
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.utils.checkpoint import checkpoint

import onepass
from tests.support.processes import as_rank, together

RANKS, LENGTH = 2, 12
SIDES = {"queries": {"q": -2, "i": 0}, "keys": {"k": -2, "v": -2, "j": 0}}
AT = torch.arange(LENGTH)


def attend(q, k, v, i, j):
    return torch.softmax((q @ k.mT / 3).masked_fill(j > i[:, None], -math.inf), -1) @ v


def whole():
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(1, 2, LENGTH, 8, generator=generator) for _ in range(4)]


def stepped(call, given, i, j, grad):
    own = [x.clone().requires_grad_() for x in given]
    result = call(*own, i, j)
    return [result.detach(), *torch.autograd.grad(result, own, grad)]


def in_inference_mode(shared, own, mine, grad):
    with torch.inference_mode():
        shared(*own, mine, mine)
    return stepped(shared, own, mine, mine, grad), AT


def by_a_collective(shared, own, mine, grad):
    at = mine.clone()
    stepped(shared, own, mine, at, grad)
    others = AT * 5 % LENGTH
    distributed.scatter(at, [*others.chunk(RANKS)] if distributed.get_rank() == 0 else None, 0)
    return stepped(shared, own, mine, at, grad), others


def by_a_dtensor(shared, own, mine, grad):
    mesh = init_device_mesh("cpu", (RANKS,))
    at = distribute_tensor(AT, mesh, [Shard(0)])
    stepped(shared, own, mine, at, grad)
    at.mul_(5).remainder_(LENGTH)
    return stepped(shared, own, mine, at, grad), AT * 5 % LENGTH


def in_a_checkpoint(shared, own, mine, grad):
    call = lambda *given: checkpoint(lambda *x: shared(*x).sin(), *given, use_reentrant=False)
    return stepped(call, own, mine, mine, grad), AT


CASES = (in_inference_mode, by_a_collective, by_a_dtensor, in_a_checkpoint)
COUNTED = (in_inference_mode, in_a_checkpoint)  # what a promise that all change together allows
SCHEDULES = ("ring", "ulysses")


def work(rank, folder):
    with as_rank(rank, RANKS, folder):
        mesh = init_device_mesh("cpu", (RANKS,))
        mine = AT.chunk(RANKS)[rank]
        *own, grad = (x[:, :, mine] for x in whole())
        for schedule in SCHEDULES:
            for case in CASES:
                for promised in (False, True) if case in COUNTED else (False,):
                    shared = onepass.context_parallel(attend, mesh, schedule=schedule, together=promised, **SIDES)
                    name = f"{case.__name__} {schedule} {promised} {rank}"
                    torch.save(case(shared, own, mine, grad), folder / name)


@pytest.mark.slow
def test_each_call_reads_the_positions_as_they_are(tmp_path):
    together(work, folder=tmp_path, ranks=RANKS)
    *given, grad = (x.double() for x in whole())
    for schedule, (case, promised) in product(SCHEDULES, [*((c, False) for c in CASES), *((c, True) for c in COUNTED)]):
        found = [torch.load(tmp_path / f"{case.__name__} {schedule} {promised} {rank}") for rank in range(RANKS)]
        call = (lambda *x: attend(*x).sin()) if case is in_a_checkpoint else attend
        right = stepped(call, given, AT, found[0][1], grad)
        for parts, expected in zip(zip(*(tensors for tensors, _ in found), strict=True), right, strict=True):
            torch.testing.assert_close(torch.cat(parts, -2), expected.float(), rtol=1e-5, atol=1e-5)

"""Training on two processes: parameters that a region reads have the gradients of one process on the whole batch."""

import contextlib
import copy
import faulthandler
import math
import signal
import time

import pytest
import torch
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import onepass
from onepass.api.backend import onepass_backend
from tests.support.processes import join_group, together

RANKS = 2


class Block(torch.nn.Module):
    """Causal attention with two parameters that its region reads: a table by distance, and a slope of each head."""

    def __init__(self):
        super().__init__()
        self.qkv = torch.nn.Linear(16, 48)
        self.slopes = torch.nn.Parameter(torch.rand(2))
        self.table = torch.nn.Parameter(torch.randn(5, 2))

    def forward(self, x):
        q, k, v = (part.unflatten(-1, (2, 8)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        at = torch.arange(x.shape[1])
        apart = at[:, None] - at
        score = q @ k.mT / 3 - self.slopes[:, None, None] * apart + self.table[apart.clamp(0, 4)].permute(2, 0, 1)
        score = score.masked_fill(apart < 0, -math.inf)
        return x + (torch.softmax(score, -1) @ v).transpose(1, 2).flatten(2)


class Ddp:
    """DistributedDataParallel around a compiled module, or the other way round."""

    def __init__(self, module, options, inside):
        compiled = lambda f: torch.compile(f, backend=onepass_backend, options=options)
        self.module = DistributedDataParallel(compiled(module) if inside else module)
        self.run = self.module if inside else compiled(self.module)

    def without_sync(self):
        return self.module.no_sync()


class Fsdp:
    """fully_shard of a module that is compiled alone, or of one in a function that is compiled with it."""

    def __init__(self, module, options, inside):
        if inside:
            module.compile(backend=onepass_backend, options=options)
        self.module = fully_shard(module, mesh=init_device_mesh("cpu", (RANKS,)), reshard_after_forward=True)
        self.run = module if inside else torch.compile(module, backend=onepass_backend, options=options)

    @contextlib.contextmanager
    def without_sync(self):
        self.module.set_requires_gradient_sync(False)
        yield
        self.module.set_requires_gradient_sync(True)


def one_call(run, x, quiet):
    run(x).square().mean().backward()


def accumulated(run, x, quiet):
    with quiet():
        run(x.sin()).square().mean().backward()
    run(x).square().mean().backward()


def two_backward_calls(run, x, quiet):
    with quiet():
        result = run(x)
        result.square().mean().backward(retain_graph=True)
        result.sin().mean().backward()
    run(x).cos().mean().backward()


def two_forward_calls(run, x, quiet):
    (run(x).square().mean() + run(x.cos()).mean()).backward()


STEPS = (one_call, accumulated, two_backward_calls, two_forward_calls, one_call)


def train(rank, way, inside, options, folder):
    """One rank: after each step the gradients are those of a copy in float64 that has the whole batch."""
    join_group(rank, RANKS, folder)
    try:
        torch.manual_seed(0)
        module = Block()
        exact = copy.deepcopy(module).double()
        made = way(module, options, inside)
        for step, act in enumerate(STEPS):
            batch = torch.randn(2 * RANKS, 13, 16, generator=torch.Generator().manual_seed(step))
            act(made.run, batch[2 * rank : 2 * rank + 2], made.without_sync)
            act(exact, batch.double(), contextlib.nullcontext)
            for mine, right in zip(made.module.parameters(), exact.parameters(), strict=True):
                found = mine.grad.full_tensor() if hasattr(mine.grad, "full_tensor") else mine.grad
                torch.testing.assert_close(found, right.grad, check_dtype=False, atol=1e-5, rtol=1e-4)
            for parameters in (made.module.parameters(), exact.parameters()):
                optimizer = torch.optim.SGD(parameters, lr=0.3)
                optimizer.step(), optimizer.zero_grad()
        regions = [region for report in onepass.reports() for region in report.regions]
        assert regions and all(region.backward_ran == "tiled" for region in regions)
    finally:
        distributed.destroy_process_group()
    (folder / f"done{rank}").touch()


@pytest.mark.slow
@pytest.mark.parametrize("inside", [True, False], ids=["around a compiled module", "compiled"])
@pytest.mark.parametrize("way", [Ddp, Fsdp])
def test_two_processes_train_as_one(way, inside, tmp_path, monkeypatch):
    monkeypatch.setenv("ONEPASS_CACHE", str(tmp_path / "cache"))
    options = {"inner": "eager", "strict": True, "executor": "tiled"}
    together(train, way, inside, options, folder=tmp_path)


def never_meets(rank, folder):
    faulthandler.register(signal.SIGUSR1, (folder / f"where{rank}").open("w"))
    time.sleep(600 if rank else 0)


def works_and_never_ends(rank, folder):
    (folder / f"done{rank}").touch()
    never_meets(rank, folder)


@pytest.mark.slow
def test_a_rank_that_waits_for_ever_fails_and_says_where(tmp_path):
    with pytest.raises(pytest.fail.Exception, match=r"(?s)does not come to an end.*never_meets"):
        together(never_meets, folder=tmp_path, seconds=30)


@pytest.mark.slow
def test_a_rank_that_did_its_work_and_hangs_is_a_warning(tmp_path):
    with pytest.warns(UserWarning, match=r"(?s)does not end.*works_and_never_ends"):
        together(works_and_never_ends, folder=tmp_path, seconds_to_end=3)

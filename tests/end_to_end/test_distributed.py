"""Training on two processes: parameters that a region reads have the gradients of one process on the whole batch."""

import contextlib
import copy
import datetime
import faulthandler
import math
import os
import signal
import time
import warnings

import pytest
import torch
from torch import distributed, multiprocessing
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import onepass
from onepass.api.backend import onepass_backend

RANKS = 2
SECONDS = 270  # for the work of the ranks, which is less than pytest's own limit, and takes ten on an idle machine
SECONDS_TO_END = 20  # for a process whose work is done
SECONDS_TO_TELL = 5  # for a process that writes where it is


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
    faulthandler.register(signal.SIGUSR1, (folder / f"where{rank}").open("w"))
    torch.set_num_threads(1)
    limit = datetime.timedelta(seconds=SECONDS // 2)
    meeting = f"file://{folder}/meeting"
    distributed.init_process_group("gloo", init_method=meeting, rank=rank, world_size=RANKS, timeout=limit)
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


def ended(context, seconds):
    """Whether the processes ended in time. Raises what one of them raised."""
    until = time.monotonic() + seconds
    while not context.join(timeout=max(0.0, until - time.monotonic())):
        if time.monotonic() >= until:
            return False
    return True


def stopped(context, folder):
    """Kills the processes. The result says where each of them was."""
    for process in context.processes:
        if process.is_alive():
            os.kill(process.pid, signal.SIGUSR1)
    time.sleep(SECONDS_TO_TELL)
    for process in context.processes:
        process.kill()
    return "\n".join(path.read_text() for path in sorted(folder.glob("where*")))


def together(function, *arguments, folder, seconds=SECONDS, seconds_to_end=SECONDS_TO_END):
    """Runs function(rank, *arguments, folder) in processes of their own, which touch done0, done1 ... at the end.

    A process that does not come to an end fails the test, and the message says where it was. One that did its work and
    hangs while Python shuts down is only a warning.
    """
    context = multiprocessing.spawn(function, (*arguments, folder), nprocs=RANKS, join=False)
    until = time.monotonic() + seconds
    worked = lambda: all((folder / f"done{rank}").exists() for rank in range(RANKS))
    while not ended(context, 1):
        if worked():
            if not ended(context, seconds_to_end):
                warnings.warn(f"did its work and does not end:\n{stopped(context, folder)}", stacklevel=2)
            return
        if time.monotonic() > until:
            pytest.fail(f"does not come to an end:\n{stopped(context, folder)}")


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

"""Processes that work together, as the ranks of one group do: started for a test, and ended with it."""

import datetime
import faulthandler
import os
import signal
import time
import warnings
from contextlib import contextmanager

import pytest
import torch
from torch import distributed, multiprocessing

SECONDS = 270  # for the work of the ranks, which is less than pytest's own limit, and takes ten on an idle machine
SECONDS_TO_END = 20  # for a process whose work is done
SECONDS_TO_TELL = 5  # for a process that writes where it is


def join_group(rank, ranks, folder):
    """The first call in a process of `together`: it becomes a rank over gloo, and SIGUSR1 lets it write where it is."""
    faulthandler.register(signal.SIGUSR1, (folder / f"where{rank}").open("w"))
    torch.set_num_threads(1)
    limit = datetime.timedelta(seconds=SECONDS // 2)
    meeting = f"file://{folder}/meeting"
    distributed.init_process_group("gloo", init_method=meeting, rank=rank, world_size=ranks, timeout=limit)


@contextmanager
def as_rank(rank, ranks, folder):
    """A process of `together` as a rank, until all ranks have done their work."""
    join_group(rank, ranks, folder)
    try:
        yield
        distributed.barrier()
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


def together(function, *arguments, folder, ranks=2, seconds=SECONDS, seconds_to_end=SECONDS_TO_END):
    """Runs function(rank, *arguments, folder) in processes of their own, which touch done0, done1 ... at the end.

    A process that does not come to an end fails the test, and the message says where it was. One that did its work and
    hangs while Python shuts down is only a warning.
    """
    context = multiprocessing.spawn(function, (*arguments, folder), nprocs=ranks, join=False)
    until = time.monotonic() + seconds
    worked = lambda: all((folder / f"done{rank}").exists() for rank in range(ranks))
    while not ended(context, 1):
        if worked():
            if not ended(context, seconds_to_end):
                warnings.warn(f"did its work and does not end:\n{stopped(context, folder)}", stacklevel=2)
            return
        if time.monotonic() > until:
            pytest.fail(f"does not come to an end:\n{stopped(context, folder)}")

"""A pipe in place of an entry, in a folder that others may write to, made the next compilation wait for ever: reading
began with waiting for somebody who writes.
"""

import os
import signal

import pytest
import torch

from onepass import process_state
from onepass.api.backend import onepass_backend
from onepass.compiler import disk_cache
from onepass.report import records

pytestmark = [
    pytest.mark.usefixtures("fresh"),
    pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes with names"),
]


def attention(q, k, v):
    return torch.softmax(q @ k.mT, -1) @ v


def run():
    """As in a new process; what the report says of the cache."""
    process_state.forget()
    torch._dynamo.reset()
    x = [torch.randn(1, 2, 6, 8) for _ in range(3)]
    result = torch.compile(attention, backend=onepass_backend, options={"inner": "eager", "executor": "tiled"})(*x)
    torch.testing.assert_close(result, attention(*x))
    return records.reports()[-1].regions[0].cache


@pytest.fixture
def pipe():
    """In place of the region's entry. What waits for it is stopped."""

    def stop(*_):
        raise AssertionError("it waits")

    run()
    (entry,) = disk_cache.folder().glob("*/*.json")
    entry.unlink()
    os.mkfifo(entry)
    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(60)
    yield entry
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def test_a_pipe_is_a_miss_that_is_logged(pipe, caplog):
    assert disk_cache.read(pipe.stem) is None
    assert "not a regular file" in caplog.text


def test_and_the_region_is_searched_stored_and_right(pipe):
    assert run() == "searched now, stored"
    assert run().startswith("found on disk") and pipe.is_file()

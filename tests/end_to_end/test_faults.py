"""Faults from outside: killed and competing processes, searches that hit every limit, wrappers around a model."""

import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from onepass import process_state
from onepass.api.backend import onepass_backend
from onepass.compiler import disk_cache, optimize
from onepass.egraph.search.engine import SearchLimits
from onepass.report import records

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.usefixtures("fresh")


def attention(q, k, v):
    return torch.softmax(q @ k.mT / math.sqrt(q.shape[-1]), dim=-1) @ v


def inputs():
    return [torch.randn(1, 2, 40, 16) for _ in range(3)]


def compiled(function=attention):
    return torch.compile(function, backend=onepass_backend, options={"inner": "eager"})


def fused() -> int:
    return sum(region.count for r in records.reports() for region in r.regions)


@pytest.mark.parametrize("limits", [SearchLimits(seconds=0.0), SearchLimits(nodes=1), SearchLimits(rounds=0)], ids=str)
def test_a_search_that_is_stopped_is_right_and_says_so(limits, monkeypatch):
    real = optimize.search
    monkeypatch.setattr(optimize, "search", lambda term, phases, _, target: real(term, phases, limits, target))
    arguments = inputs()
    torch.testing.assert_close(compiled()(*arguments), attention(*arguments))
    found = records.reports()[-1]
    stops = [region.statistics["stop"] for region in found.regions]
    assert found.refusals or any("saturated" not in reason for stop in stops for reason in stop.values())


WRITER = """
import sys
from onepass.compiler import disk_cache as cache
for turn in range(60):
    assert cache.write("a" * 40, {"writer": sys.argv[1], "text": sys.argv[1] * 50_000})
"""


def start(*arguments) -> subprocess.Popen:
    return subprocess.Popen([sys.executable, "-c", WRITER, *arguments], cwd=ROOT, env=dict(os.environ))


@pytest.mark.slow
def test_processes_that_write_one_entry_never_mix_it():
    writers = [start(name) for name in "xyz"]
    seen = set()
    while any(w.poll() is None for w in writers):
        body = disk_cache.read("a" * 40)
        if body is not None:
            assert body["text"] == body["writer"] * 50_000
            seen.add(body["writer"])
    assert [w.wait() for w in writers] == [0, 0, 0] and seen


def test_a_writer_that_is_killed_leaves_the_entry_whole():
    disk_cache.write("a" * 40, {"writer": "x", "text": "x" * 50_000})
    for delay in (0.5, 0.8, 1.0):
        writer = start("y")
        time.sleep(delay)
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        body = disk_cache.read("a" * 40)
        assert body["text"] == body["writer"] * 50_000


HOSTILE = ['__import__("os").abort()', "x'); raise SystemExit('run'); ('", "a\nraise SystemExit", "../../x", "lambda"]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", HOSTILE)
def test_names_in_an_entry_are_never_code(name):
    """An entry whose names were changed and that was signed again: it is data, at worst it is useless."""
    arguments = inputs()
    compiled()(*arguments)
    (path,) = disk_cache.folder().glob("*/*.json")
    body = disk_cache.read(path.stem)
    old = body["names"][0]
    assert disk_cache.write(path.stem, json.loads(json.dumps(body).replace(json.dumps(old), json.dumps(name))))

    torch._dynamo.reset()
    process_state.forget("runners", "regions")
    torch.testing.assert_close(compiled()(*arguments), attention(*arguments))


def broken_graph(q, k, v):
    first = attention(q, k, v)
    torch._dynamo.graph_break()
    return attention(first, k, v)


def checkpointed(q, k, v):
    return torch.utils.checkpoint.checkpoint(attention, q, k, v, use_reentrant=False)


def branching(q, k, v):
    return attention(q, k, v) if q.shape[-2] > 4 else q


def loop(q, k, v):
    for _ in range(3):
        q = attention(q, k, v)
    return q


@pytest.mark.sampled(1)
@pytest.mark.parametrize("function, regions", [(broken_graph, 2), (branching, 1), (loop, 3), (checkpointed, None)])
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_what_surrounds_attention_is_respected(function, regions, mode):
    arguments = inputs()
    with mode():
        torch.testing.assert_close(compiled(function)(*arguments), function(*arguments))
    found = records.reports()
    if regions is None:  # what a checkpoint calls stays as written, and the report says so
        assert fused() or any("checkpoint" in r.reason for f in found for r in f.refusals)
    else:
        assert fused() == regions

"""A child that was forked hung for ever at its first new compile: egglog's threads, and locks, had stayed behind."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from onepass.egraph import forks
from onepass.egraph.search import egglog_bindings
from onepass.egraph.search.egglog_bindings import EngineError, new_engine
from onepass.egraph.search.engine import saturate
from onepass.rules import PHASES
from tests.egraph.search.test_search import program

ROOT = Path(__file__).resolve().parents[3]
pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing is forked here")

PROGRAM = """
import multiprocessing, os, signal, sys, threading, time
import torch
from onepass.report import records as report

torch.set_num_threads(1)  # OpenMP's threads do not live on in a child either
x = [torch.randn(1, 2, 6, 8) for _ in range(3)]

def attention(number):
    found = {}
    exec(f"def f(q, k, v): return torch.softmax(q @ k.mT / {number}.0, -1) @ v", {"torch": torch}, found)
    return found["f"]

def run(number):
    signal.alarm(100)  # a child that hangs is ended, and the test fails
    f = attention(number)
    given = torch.compile(f, backend="onepass", options={"inner": "eager", "strict": True})(*x)
    torch.testing.assert_close(given.double(), f(*(t.double() for t in x)), atol=1e-5, rtol=1e-5)
    return report.reports()[-1].regions[0].cache

def in_a_child(act, *arguments):
    child = os.fork()
    if child == 0:
        print("child:", act(*arguments), flush=True)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0

def held(module, name):
    # A thread of the parent that is inside of the function of that name, and stays there.
    inside = threading.Event()
    def waits(*_, **__):
        inside.set()
        time.sleep(1000)
    original = getattr(module, name)
    setattr(module, name, waits)
    threading.Thread(target=run, args=(7,), daemon=True).start()
    assert inside.wait(100)
    setattr(module, name, original)

class Rows(torch.utils.data.Dataset):
    __len__ = lambda self: 2
    __getitem__ = lambda self, number: run(number + 20)
"""
WAYS = {
    "one after the other": """
in_a_child(run, 2)  # the parent has not searched
run(3)
in_a_child(run, 4)
in_a_child(lambda: [run(5), in_a_child(run, 6)])
with multiprocessing.get_context("fork").Pool(2) as pool:
    print("child:", *pool.map_async(run, range(7, 10)).get(100))
loader = torch.utils.data.DataLoader(Rows(), num_workers=2, multiprocessing_context="fork", timeout=100)
print("child:", *loader)
""",
    "egglog was loaded by others": """
import egglog
egglog.EGraph()
in_a_child(run, 2)
""",
    "a thread searches": """
from onepass.compiler import optimize as pipeline
run(3)
held(pipeline, "search")
in_a_child(run, 4)
""",
    "a thread loads egglog": """
from onepass.egraph.search import egglog_bindings as bindings
held(bindings, "_load")
in_a_child(run, 4)
""",
    "a thread runs for the first time": """
from onepass.runtime import operator
run(3)
held(operator, "_new_runner")
in_a_child(run, 4)
""",
}


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_a_child_compiles_and_is_right(way):
    environment = {**os.environ, "ONEPASS_CACHE": "off", "PYTHONPATH": str(ROOT)}
    script = f"{PROGRAM}\n{WAYS[way]}\nprint('done', flush=True)\nos._exit(0)  # a thread may still wait"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment, timeout=300)
    *children, last = done.stdout.splitlines() or [""]
    assert last == "done", done.stdout + done.stderr
    assert children and all("searched now" in line for line in children), done.stdout


@pytest.fixture
def apart(monkeypatch):
    """As where egglog was loaded before a fork."""
    with new_engine():
        pass
    monkeypatch.setattr(egglog_bindings, "_loaded_in", 0)


def test_the_search_is_the_same_in_a_process_of_its_own(monkeypatch):
    here = saturate(program(causal=True), PHASES)
    monkeypatch.setattr(egglog_bindings, "_loaded_in", 0)
    there = saturate(program(causal=True), PHASES)
    assert (there.classes, there.roots, there.fired) == (here.classes, here.roots, here.fired)
    assert there.statistics["matches"] == here.statistics["matches"]


def test_errors_of_the_other_process_are_errors_here(apart):
    with new_engine() as engine:
        with pytest.raises(EngineError, match="egglog"):
            engine.run("(no such command)")
        assert engine.run("(print-size)")["sizes"] == []
        engine.process.kill()
        with pytest.raises(EngineError, match="does not answer"):
            engine.run("(print-size)")
    assert engine.process.returncode is not None


@pytest.mark.parametrize("python, said", [("", "no Python"), ("/no/python", "does not start"), ("/bin/true", "answer")])
def test_without_a_python_the_search_says_so(apart, monkeypatch, python, said):
    monkeypatch.setattr(sys, "executable", python)
    with pytest.raises(EngineError, match=said):
        saturate(program(), PHASES)


def test_locks_of_threads_that_are_gone_are_made_anew():
    lock, inside, done = forks.lock(), threading.Event(), threading.Event()

    def holds():
        with lock:
            inside.set()
            done.wait()

    thread = threading.Thread(target=holds)
    thread.start()
    inside.wait()
    child = os.fork()
    if child == 0:
        os._exit(0 if lock.acquire(timeout=5) else 1)
    done.set()
    thread.join()
    assert os.waitpid(child, 0)[1] == 0


def test_a_lock_of_the_forking_thread_stays_its_own():
    lock = forks.lock()
    with lock:
        child = os.fork()
        if child == 0:
            try:
                lock.release()
                os._exit(0)
            except RuntimeError:
                os._exit(1)
    assert os.waitpid(child, 0)[1] == 0

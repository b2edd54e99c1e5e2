"""A trial that crashes, hangs or raises loses itself only."""

import os
import time

import pytest

from onepass.tune.bayesian_search import Isolated, checked
from onepass.tune.trial_process import Outcome, Worker


def act(task):
    what, value = task
    if what == "exit":
        os._exit(7)
    if what == "sleep":
        time.sleep(value)
    if what == "raise":
        raise ValueError("first line\nsecond line")
    return os.getpid(), value


def test_every_end_of_a_trial():
    with Worker(act, 5.0) as worker:
        assert worker(("return", 1)).value[1] == 1
        first = worker(("return", 2)).value[0]
        assert first == worker(("return", 3)).value[0] != os.getpid(), "one process serves many trials"
        raised = worker(("raise", 0))
        assert (raised.status, raised.note) == ("error", "ValueError: first line")
        assert worker(("return", 4)).value[0] == first, "an exception does not cost the process"
        crashed = worker(("exit", 0))
        assert crashed.status == "crash" and "7" in crashed.note
        worker.seconds = 1.0
        began = time.monotonic()
        assert worker(("sleep", 60)).status == "time-out" and time.monotonic() - began < 30
        worker.seconds = 20.0
        after = worker(("return", 5))
        assert after.status == "ok" and after.value[0] != first


@pytest.mark.parametrize("times", [2])
def test_close_may_be_repeated(times):
    worker = Worker(act, 20.0)
    for _ in range(times):
        assert worker(("return", 1)).status == "ok"
        worker.close()
        worker.close()


def body(point: tuple) -> Outcome:
    act((point[0], 60))
    return checked(lambda point: point[0], lambda result: result != "wrong", lambda point: 2.0)(point)


def test_a_lost_trial_of_the_tuner_is_infeasible():
    trial, found = Isolated(body, 60.0), {}
    for what in ("fine", "exit", "also fine", "raise", "wrong"):
        found[what] = trial((what,))
    trial.worker.seconds = 1.0
    found["sleep"] = trial(("sleep",))
    trial.close()
    assert {what: t.status for what, t in found.items()} == {
        "fine": "ok", "also fine": "ok", "exit": "crash", "raise": "error", "wrong": "wrong", "sleep": "time-out",
    }  # fmt: skip
    assert found["fine"].time == 2.0 and found["wrong"].time == float("inf")

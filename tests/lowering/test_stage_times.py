"""Stages of a first call: each second is counted once, in the account of whoever began, and in no other thread's."""

import threading
import time

import pytest

from onepass.lowering.stage_times import shown, stage


@pytest.fixture
def clock(monkeypatch):
    """A clock that a test moves on."""
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])

    def wait(seconds):
        now[0] += seconds

    return wait


def test_an_inner_stage_is_not_counted_in_the_outer_one(clock):
    found = {}
    with stage("outer", found):
        clock(1)
        with stage("inner"):
            clock(2)
            with stage("innermost"):
                clock(4)
        with stage("inner"):
            clock(8)
    assert found == {"outer": 1, "inner": 10, "innermost": 4}


def test_an_inner_account_takes_its_seconds_from_the_outer_one(clock):
    graph, region = {}, {}
    with stage("graph", graph):
        with stage("first run", region):
            clock(3)
            with stage("check"):
                clock(2)
        clock(1)
    assert (graph, region) == ({"graph": 1}, {"first run": 3, "check": 2})


def test_an_error_is_counted_and_ends_the_stage(clock):
    found = {}
    with pytest.raises(ZeroDivisionError), stage("outer", found), stage("inner"):
        clock(1)
        raise ZeroDivisionError
    with stage("outer", found):
        clock(2)
    assert found == {"inner": 1, "outer": 2}


def test_a_decorated_function_counts_each_call(clock):
    work = stage("work")(lambda: clock(1))
    found = {}
    work()  # nobody asks
    with stage("outer", found):
        work(), work()
    assert found == {"work": 2, "outer": 0}


def test_another_thread_adds_nothing(clock):
    found = {}

    def aside():
        with stage("aside"):
            clock(5)

    with stage("outer", found):
        thread = threading.Thread(target=aside)
        thread.start()
        thread.join()
    assert found == {"outer": 5}


def test_what_is_shown():
    assert shown({"plan": 0.02, "search": 1.5, "capture": 0.0004}) == "search 1.500 s, plan 0.020 s"

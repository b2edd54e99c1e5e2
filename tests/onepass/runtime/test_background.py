"""Work of threads: done once, waited for if it has begun, left out if not, and not there in a forked child."""

import os
import threading

import pytest

from onepass.runtime.background import Background

WAIT = 20  # seconds after which a test is stuck


def test_work_of_a_key_is_done_once():
    done, jobs = [], Background()
    for number in range(3):
        jobs.start("key", lambda number=number: done.append(number))
    jobs.finish("key"), jobs.finish("key"), jobs.finish("another key")
    assert done == [0]


def test_who_needs_the_result_waits_for_it():
    may_end, done, jobs = threading.Event(), [], Background()
    jobs.start("key", lambda: (may_end.wait(WAIT), done.append(1)))
    threading.Timer(0.05, may_end.set).start()
    jobs.finish("key")
    assert done == [1]


def test_whether_work_is_under_way():
    began, may_end, jobs = threading.Event(), threading.Event(), Background(threads=1)
    jobs.start("first", lambda: (began.set(), may_end.wait(WAIT)))
    jobs.start("second", lambda: None)
    assert began.wait(WAIT)
    assert [jobs.is_under_way(key) for key in ("first", "second", "third")] == [True, False, False]
    may_end.set()
    jobs.finish("first")
    assert not jobs.is_under_way("first")


def test_work_that_has_not_begun_is_left_out():
    began, may_end, done, jobs = threading.Event(), threading.Event(), [], Background(threads=1)
    jobs.start("first", lambda: (began.set(), may_end.wait(WAIT)))
    jobs.start("second", lambda: done.append(1))
    assert began.wait(WAIT)
    jobs.finish("second")  # it does not wait for the first
    may_end.set()
    jobs.finish("first")
    assert done == []


def test_work_that_fails_is_as_if_not_tried():
    jobs = Background()
    jobs.start("key", lambda: 1 / 0)
    jobs.finish("key")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_waits_for_nothing_and_starts_its_own():
    began, may_end, jobs = threading.Event(), threading.Event(), Background()
    jobs.start("key", lambda: (began.set(), may_end.wait(WAIT)))
    assert began.wait(WAIT)
    child = os.fork()
    if child == 0:
        done = []
        jobs.finish("key")
        jobs.start("key", lambda: done.append(1))
        jobs.finish("key")
        os._exit(0 if done in ([], [1]) else 1)  # it may be cancelled before it begins
    may_end.set()
    assert os.waitpid(child, 0)[1] == 0

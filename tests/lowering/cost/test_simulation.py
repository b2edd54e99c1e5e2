"""Actors on units: who takes a unit in turn, who shares it, and what a wait waits for."""

import pytest

from onepass.lowering.cost.simulation import Await, Deadlock, Raise, Work, simulated


def ends(spans):
    return {span.work.label: (span.start, span.end) for span in spans}


def work(label, clocks, unit="tensor", **more):
    return Work(unit, clocks, label=label, **more)


def test_a_unit_is_taken_in_turn():
    spans = simulated([[work("a", 100), work("c", 10)], [work("b", 50)]])
    assert ends(spans) == {"a": (0, 100), "b": (100, 150), "c": (150, 160)}


def test_a_shared_unit_is_slower_for_each():
    spans = simulated([[work("a", 100, "vector")], [work("b", 30, "vector"), work("c", 5, "")]], ("vector",))
    assert ends(spans) == {"a": (0, 130), "b": (0, 60), "c": (60, 65)}


def test_who_does_not_wait_goes_on_until_the_signal():
    issued = work("a", 100, signals="done", waits=False)
    spans = simulated([[issued, work("b", 30, "vector"), Await("done", 1), work("c", 1, "vector")]])
    assert ends(spans) == {"a": (0, 100), "b": (0, 30), "c": (100, 101)}


def test_a_counter_may_begin_above_0_and_signals_wake_others():
    actors = [[Await("mine", 1), work("a", 10), Raise("yours")], [Await("yours", 1), work("b", 10, "vector")]]
    assert ends(simulated(actors, counters={"mine": 1})) == {"a": (0, 10), "b": (10, 20)}


def test_nobody_goes_on():
    with pytest.raises(Deadlock, match="never"):
        simulated([[work("a", 1), Await("never", 1)]])


def test_works_without_time_end_at_once_and_each_is_done_once():
    spans = simulated([[work("a", 0), work("b", 0.0, "vector"), work("c", 3)]], ("vector",))
    assert ends(spans) == {"a": (0, 0), "b": (0, 0), "c": (0, 3)} and len(spans) == 3

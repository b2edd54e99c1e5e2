"""A quick run leaves out what is marked, and nothing else."""

from types import SimpleNamespace

import pytest

from tests.support.quick_tests import left_out, sample


def item(nodeid, *markers):
    found = {marker.name: marker for marker in markers}
    return SimpleNamespace(nodeid=nodeid, get_closest_marker=found.get)


def test_slow_tests_and_all_but_some_cases_of_sampled_ones_are_left_out():
    slow, sampled = pytest.mark.slow.mark, pytest.mark.sampled(2).mark
    cases = [item(f"t.py::test_b[{k}]", sampled) for k in range(9)]
    gone = left_out([item("t.py::test_a"), item("t.py::test_c[1]", slow), item("t.py::test_d[1]"), *cases])
    names = [i.nodeid for i in gone]
    assert names[0] == "t.py::test_c[1]" and len(names) == 1 + 7
    assert all(name.startswith("t.py::test_b") for name in names[1:])


@pytest.mark.parametrize("count", [1, 4, 100])
def test_a_sample_is_the_same_whatever_the_order_and_keeps_its_cases(count):
    names = [f"case {k}" for k in range(30)]
    found = sample(names, count)
    assert sample(names[::-1], count) == found and len(found) == min(count, 30)
    more = sample([*names, "a new case"], count)
    assert len({*found} - {*more}) <= 1

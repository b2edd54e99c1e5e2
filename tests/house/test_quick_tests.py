"""A quick run leaves out what is marked, and nothing else."""

import re
import tomllib
from types import SimpleNamespace

import pytest

from tests.house.tree import ROOT
from tests.support.quick_tests import left_out, sample

# What tests may lack: package as imported, as named in pyproject.toml; scipy comes with scikit-learn.
PACKAGES = {"sklearn": "scikit-learn", "z3": "z3-solver", "material": "mkdocs-material", "scipy": "scikit-learn"}
SKIPS = re.compile(r"(?:importorskip|skipif\(find_spec)\(\"(\w+)")


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


def test_no_test_is_skipped_for_a_package_that_make_does_not_install():
    """The tests of `onepass tune` were skipped so, and the command failed unseen."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    words = [*project["dependencies"], *project["optional-dependencies"]["test"]]
    installed = {re.split(r"[<>=;\[ ]", word)[0] for word in words}
    texts = [path.read_text() for path in sorted((ROOT / "tests").rglob("*.py"))]
    asked = {PACKAGES.get(name, name) for text in texts for name in SKIPS.findall(text)} - {"onepass"}
    assert {"scikit-learn", "mkdocs-material", "ortools"} <= asked <= installed

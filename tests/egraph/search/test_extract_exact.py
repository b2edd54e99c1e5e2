"""Exact extraction: never costlier than the greedy one, equal in meaning, the same every time, and on request only."""

import sys

import numpy as np
import pytest

from onepass.egraph.derivation.normalize import normalise
from onepass.egraph.search import extract_exact
from onepass.egraph.search.cost import Target
from onepass.egraph.search.cp_sat import SolverMissing
from onepass.egraph.search.engine import EGraph, ENode, SearchLimits, saturate
from onepass.egraph.search.extract import extract, measure
from onepass.egraph.search.search import search
from onepass.egraph.terms.ops import iota, load
from onepass.egraph.terms.term import Dim, Tensor
from onepass.rules import NORMAL, PHASES
from tests.support.attention_terms import MASKS, attention, meaning, three_pass

pytest.importorskip("ortools")
TARGET = Target()
CASES = [{"mask": mask} for mask in MASKS] + [{"dtype": "float16"}, {"queries": 3, "keys": 400}, {"symbolic": True}]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("options", CASES, ids=str)
def test_never_costlier_than_greedy_and_equal(options):
    case = attention(**{"batch": (2,), "queries": 20, "keys": 30, "width": 4, "form": three_pass, **options})
    egraph = saturate(normalise(case.term, NORMAL), PHASES)
    found, how = extract_exact.extract_exactly(egraph)
    assert how == "optimal"
    assert measure(found, TARGET) <= measure(extract(egraph), TARGET)
    assert extract_exact.extract_exactly(egraph) == (found, how)
    case.term = found
    np.testing.assert_allclose(meaning(case), case.eager({n: x.double() for n, x in case.inputs.items()}), atol=5e-3)


def two_sides() -> EGraph:
    """a + b, a is -e^x0 or |n|, b is -e^x1 or ⌊n⌋, n is -e^x2: no class holds equals, but only costs are asked for.

    Each side alone is cheapest with an exponential of its own; together they are cheaper with the one they can share.
    """
    i = Dim("i", 4096)
    x = [load(Tensor(f"x{n}", "float32", (4096,)), iota(i)) for n in range(3)]
    leaves = {f"x{n}": [ENode("load", (), (), leaf)] for n, leaf in enumerate(x)}
    return EGraph(
        {
            **leaves,
            "own a": [ENode("exp", ("x0",), ())],
            "own b": [ENode("exp", ("x1",), ())],
            "shared": [ENode("exp", ("x2",), ())],
            "a": [ENode("neg", ("own a",), ()), ENode("abs", ("near",), ())],
            "b": [ENode("neg", ("own b",), ()), ENode("floor", ("near",), ())],
            "near": [ENode("neg", ("shared",), ())],
            "root": [ENode("add", ("a", "b"), ())],
        },
        ("root",),
        (),
    )


def test_sharing_that_greedy_does_not_see_is_found():
    egraph = two_sides()
    greedy, (found, how) = extract(egraph), extract_exact.extract_exactly(egraph)
    assert how == "optimal"
    assert measure(greedy, TARGET)[3] == (4 + 1 + 4 + 1 + 1) * 4096
    assert measure(found, TARGET)[3] == (4 + 1 + 1 + 1 + 1) * 4096


def test_no_form_is_built_of_itself():
    egraph = two_sides()
    egraph.classes["near"].insert(0, ENode("neg", ("a",), ()))
    egraph.classes["a"].insert(0, ENode("neg", ("near",), ()))
    found, how = extract_exact.extract_exactly(egraph)
    assert how == "optimal" and measure(found, TARGET)[3] == 8 * 4096


def test_large_graphs_and_missing_solvers_are_left_to_greedy(monkeypatch):
    egraph = two_sides()
    monkeypatch.setattr(extract_exact, "MAX_NODES", 3)
    assert extract_exact.extract_exactly(egraph) == (extract(egraph), "greedy: more than 3 nodes")
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "ortools.sat.python", None)
    found, how = extract_exact.extract_exactly(egraph)
    assert found == extract(egraph) and "pip install" in how
    with pytest.raises(SolverMissing):
        extract_exact.cp_model()


def test_on_request_only(monkeypatch):
    case = attention(batch=(), queries=5, keys=6, width=4, form=three_pass)
    term = normalise(case.term, NORMAL)
    assert search(term, PHASES, SearchLimits(exact=True)).statistics["extraction"] == "optimal"
    monkeypatch.setattr(extract_exact, "extract_exactly", lambda *_: pytest.fail("it was not asked for"))
    assert search(term, PHASES).statistics["extraction"] == "greedy"

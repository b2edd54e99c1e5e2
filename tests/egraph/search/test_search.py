"""The search on terms of whole programs: what the rules derive, what they do not without one law, limits, determinism.

No GPU and no PyTorch graph: terms are made by hand.
"""

import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from onepass.egraph.derivation.normalize import canonical_names, normalise
from onepass.egraph.search.engine import EngineError, SearchLimits, rule_text, saturate
from onepass.egraph.search.extract import extract, passes
from onepass.egraph.search.search import search
from onepass.egraph.terms.evaluate import evaluate
from onepass.egraph.terms.ops import cast, const, exp, iota, le, load, make, max_over, sum_over, uniform, where
from onepass.egraph.terms.term import Dim, Tensor
from onepass.egraph.terms.traversal import reduces
from onepass.rules import ALL, NORMAL, PHASES

ROOT = Path(__file__).resolve().parents[3]


def program(length=4096, width=64, softmax=True, causal=False, factor=None):
    i, j, d, e = Dim("i", length), Dim("j", length), Dim("d", width), Dim("e", width)
    q, k, v = (Tensor(name, "float32", (length, width)) for name in "qkv")
    at = lambda tensor, row, column: load(tensor, iota(row), iota(column))
    score = sum_over(d, at(q, i, d) * at(k, j, d))
    if causal:
        score = where(le(iota(j), iota(i)), score, const(-math.inf))
    if softmax:
        score = score / const(8.0)
        weight = exp(score - max_over(j, score))
        score = weight / sum_over(j, weight)
    score = score if factor is None else score * factor
    return normalise(sum_over(j, score * at(v, j, e)), NORMAL)


def without(*names):
    return {phase: tuple(r for r in rules if r.name not in names) for phase, rules in PHASES.items()}


RESCALING = ("rescale_weighted_sum", "rescale_sum", "rescale_shifted_weighted_sum", "rescale_shifted_sum")
DEFERRING = ("divisor_out_of_sum",)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("switched_off, left", [((), 1), (RESCALING, 2), (RESCALING + DEFERRING, 3)], ids=str)
def test_passes_fall_by_the_laws_that_are_on(switched_off, left, causal):
    found = search(program(causal=causal), without(*switched_off))
    assert (found.passes_before, found.passes_after) == (3, left)


@pytest.mark.parametrize("length", [3, 200, 4096])
def test_one_pass_at_any_length(length):
    assert search(program(length), PHASES).passes_after == 1


@pytest.mark.parametrize("factor", ["loaded", "random"])
def test_weights_times_a_factor_of_rows_and_columns_take_one_pass(factor):
    """The factor is multiplied by the exponential: with the values it would be no product of matrices."""
    i, j = Dim("i", 4096), Dim("j", 4096)
    at = iota(i), iota(j)
    kept = cast(le(const(0.5), uniform(const(1), const(2), const(0), *at)), "float32")
    loaded = load(Tensor("f", "float32", (4096, 4096)), *at)
    found = search(program(factor=loaded if factor == "loaded" else kept), PHASES)
    assert (found.passes_before, found.passes_after) == (3, 1)


def test_no_law_knows_what_it_is_used_for():
    names = {"attention", "softmax", "query", "key", "value"}
    assert not [rule.name for rule in ALL if names & set(rule.name.split("_"))]


def test_products_are_reassociated_where_that_is_less_work():
    d = search(program(4096, 64, softmax=False), PHASES).term
    assert d.op == "reduce" and d.attrs[1].name == "d", d
    j = search(program(64, 4096, softmax=False), PHASES).term
    assert j.op == "reduce" and j.attrs[1].name == "j", j


@pytest.mark.parametrize("dims", ["d", "de"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_distances_are_products_where_inputs_are_bfloat16(dtype, dims):
    """The guard reads what is stored: a cast to float32 is none, and products of other types round too much."""
    i, j, folded = Dim("i", 4096), Dim("j", 4096), [Dim(name, 8) for name in dims]
    shape = (4096, *(8 for _ in folded))
    x, y = (load(Tensor(name, dtype, shape), iota(row), *map(iota, folded)) for name, row in (("x", i), ("y", j)))
    before = (cast(x, "float32") - cast(y, "float32")) * (cast(x, "float32") - cast(y, "float32"))
    for dim in reversed(folded):
        before = sum_over(dim, before)
    after = search(normalise(before, NORMAL), PHASES).term
    assert after.op == ("maximum" if dtype == "bfloat16" else "reduce"), after


@pytest.mark.parametrize("kind", [{}, {"causal": True}, {"softmax": False}], ids=str)
def test_every_extracted_form_means_what_was_captured(kind):
    before = program(7, 5, **kind)
    random = np.random.default_rng(0)
    tensors = {name: random.normal(size=(7, 5)) * 3 for name in "qkv"}
    for phases in (PHASES, without(*RESCALING), without(*RESCALING, *DEFERRING)):
        after = search(before, phases).term
        np.testing.assert_allclose(evaluate(after, tensors), evaluate(before, tensors), rtol=1e-10, atol=1e-12)


def test_the_search_is_deterministic():
    first, second = (search(program(causal=True), PHASES) for _ in range(2))
    assert first.term is second.term and first.fired == second.fired
    assert first.statistics["matches"] == second.statistics["matches"]


def test_it_says_why_it_stopped():
    stop = lambda **limits: saturate(program(), PHASES, SearchLimits(**limits)).statistics["stop"]
    assert stop() == {"algebra": "saturated", "streaming": "saturated"}
    assert stop(nodes=30)["algebra"] == "node limit"
    assert stop(rounds=1)["algebra"] == "round limit"
    assert stop(seconds=0.0)["algebra"] == "time limit"


def test_a_form_extracted_after_a_limit_is_still_a_form_of_the_program():
    term = extract(saturate(program(6, 4), PHASES, SearchLimits(nodes=30)))
    tensors = {name: np.random.default_rng(1).normal(size=(6, 4)) for name in "qkv"}
    np.testing.assert_allclose(evaluate(term, tensors), evaluate(program(6, 4), tensors), rtol=1e-10)


def test_every_searched_law_has_a_text_and_a_directed_guard_has_none():
    for rules in PHASES.values():
        assert all(f'"rule {rule.name}"' in rule_text(rule, "phase") for rule in rules)
    directed = next(rule for rule in NORMAL if rule.name == "divide_by_constant")
    with pytest.raises(EngineError, match="divide_by_constant"):
        rule_text(directed, "phase")


def test_normal_form_is_a_fixpoint_and_names_do_not_matter():
    term = program(causal=True)
    assert normalise(term, NORMAL) is term
    i, j, d, e = (Dim(n, s) for n, s in zip("xyzw", (4096, 4096, 64, 64)))
    q, k, v = (Tensor(name, "float32", (4096, 64)) for name in "qkv")
    score = sum_over(d, load(q, iota(i), iota(d)) * const(0.125) * load(k, iota(j), iota(d)))
    score = where(le(iota(i) + const(1), iota(j)), const(-math.inf), score)
    weight = exp(score - max_over(j, score))
    other = normalise(sum_over(j, weight / sum_over(j, weight) * load(v, iota(j), iota(e))), NORMAL)
    assert canonical_names(other) is canonical_names(term)


def test_pass_count_of_a_chain():
    j = Dim("j", 1000)
    x = load(Tensor("x", "float32", (1000,)), iota(j))
    centred = x - sum_over(j, x)
    assert passes(sum_over(j, centred * centred)) == 2


def test_egglog_itself_still_works_after_a_search():
    script = "from onepass.egraph.search.egglog_bindings import new_engine; new_engine().__enter__().run('');"
    script += "import egglog; g = egglog.EGraph(); g.check(egglog.i64(2) > egglog.i64(1)); print('ok')"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout == "ok\n", done.stderr


@pytest.mark.parametrize("heads, left", [(2, 1), (8, 2), (32, 2)])
def test_no_pass_is_saved_by_far_more_work_than_was_written(heads, left):
    """Weights mixed over g, then multiplied by values for each f: a state for every pair would need one pass."""
    i, j, e, f, g = Dim("i", 4096), Dim("j", 4096), Dim("e", 64), Dim("f", heads), Dim("g", heads)
    tensor = lambda name, *dims: load(Tensor(name, "float32", tuple(d.size for d in dims)), *map(iota, dims))
    score = tensor("s", g, i, j)
    weight = exp(score - max_over(j, score))
    mixed = sum_over(g, tensor("w", f, g) * (weight / sum_over(j, weight)))
    found = search(normalise(sum_over(j, mixed * tensor("v", f, j, e)), NORMAL), PHASES)
    assert (found.passes_before, found.passes_after) == (3, left)


def test_a_class_takes_another_node_that_the_roots_need_anyway():
    """The largest s · 30 is cheapest as 30 times the largest s; beside the state of s · 30 it is that one's scale."""
    i, j = Dim("i", 4096), Dim("j", 4096)
    score = make("tanh", (load(Tensor("x", "float32", (4096, 4096)), iota(i), iota(j)),)) * const(30.0)
    largest = max_over(j, score)
    total = sum_over(j, exp(score - largest))
    alone = search([normalise(largest, NORMAL)], PHASES).terms
    together = [normalise(term, NORMAL) for term in (largest + make("log", (total,)), largest / total)]
    reductions = {r for term in search(together, PHASES).terms for r in reduces(term)}
    assert [r.attrs[0] for r in reductions] == ["rescaled"] and [r.attrs[0] for r in reduces(alone[0])] == ["max"]

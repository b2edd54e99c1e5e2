"""Candidates for what is stored: sums, scores and states of loops, none of them twice, containers first."""

from onepass.egraph.terms.ops import make, sum_over
from onepass.egraph.terms.term import Dim, Tensor, Term
from onepass.egraph.terms.traversal import subterms
from onepass.lowering.cost.candidates import candidates, in_order, stored_bytes
from onepass.lowering.plan.thresholds import MAX_RESIDENT_ELEMENTS
from tests.support.attention_terms import loaded, one_pass

B, I, J, X, C = (Dim(*d) for d in (("b", 4), ("i", 512), ("j", 1024), ("x", 2048), ("c", 64)))


def tensor(name: str, *dims: Dim) -> Term:
    return loaded(Tensor(name, "bfloat16", tuple(d.size for d in dims)), *dims)


def scores(keys: str, dim: Dim) -> Term:
    return sum_over(C, tensor("q", B, I, C) * tensor(keys, B, dim, C))


def found(*terms: Term) -> list[tuple[Term, ...]]:
    return candidates(terms, MAX_RESIDENT_ELEMENTS)


def test_one_loop_has_its_scores_only():
    """Its states are all that the result is made of: a kernel that reads them would have nothing to do."""
    s = scores("k", J)
    assert found(one_pass(J, s, tensor("v", B, J, C))) == [(s,)]


def test_states_of_each_of_two_loops():
    one = one_pass(J, scores("k", J), tensor("v", B, J, C))
    other = one_pass(X, scores("p", X), tensor("w", B, X, C))
    sets = [c for c in found(one + other) if c[0].op in ("scale", "mantissa")]
    assert [{r.args[0].attrs[1] for r in c} for c in sets] == [{J}, {X}]
    assert all(len(c) == 2 for c in sets)  # mantissas of values and of ones: without one of them the loop runs again


def test_what_differs_in_names_alone_is_one_candidate():
    """Softmax over the keys and over the queries reads the same distances."""
    a, d = Dim("a", 512), Dim("d", 1024)
    distance = lambda i, j: sum_over(C, make("abs", (tensor("q", B, i, C) - tensor("k", B, j, C),)))
    over_keys = one_pass(J, -distance(I, J), tensor("v", B, J, C))
    over_queries = one_pass(a, -distance(a, d), tensor("w", B, a, C))
    sums = [c for c in found(over_keys, over_queries) if c[0].op == "reduce"]
    assert len(sums) == 1


def test_no_candidate_is_a_result_or_a_load():
    s = scores("k", J)
    assert all(t is not s and t.op != "load" for c in found(s) for t in c)
    read = tensor("s", B, I, J)
    assert (read,) not in found(one_pass(J, read, tensor("v", B, J, C)))


def test_containers_come_first():
    s = scores("k", J)
    whole = one_pass(J, s, tensor("v", B, J, C))
    chosen = in_order((s, whole, s), [whole + 1.0])
    assert chosen == (whole, s)
    for number, term in enumerate(chosen):
        assert not any(later in set(subterms(term)) and term in set(subterms(later)) for later in chosen[number + 1 :])


def test_bytes_of_scores_and_of_halves():
    assert stored_bytes((scores("k", J),), {}) == 4 * 4 * 512 * 1024
    assert stored_bytes((scores("k", Dim("n", "n")),), {"n": 10}) == 4 * 4 * 512 * 10

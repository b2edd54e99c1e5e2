"""p ∧ (p ∧ q) stayed as it was, where p ∧ p was p: a mask joined to one that holds it already was read twice."""

import itertools

import pytest
import torch

import onepass
from onepass.egraph.terms.evaluate import evaluate
from onepass.egraph.terms.index_simplify import simplify_index
from onepass.egraph.terms.ops import const, iota, le, make
from onepass.egraph.terms.term import Dim
from onepass.egraph.terms.traversal import operands, substitute, subterms
from onepass.graph.trace import program_of
from onepass.translate.translate import translate

pytestmark = pytest.mark.usefixtures("fresh")
I, J = iota(Dim("i", 4)), iota(Dim("j", 5))
P, Q, R = le(I, J), le(const(1), I), le(J, const(2))
NESTED = [(P, (P, Q)), ((P, Q), P), ((P, Q), (Q, P)), ((P, Q), (R, Q)), ((P, (Q, R)), (R, (P, P)))]


def joined(op, parts):
    return make(op, tuple(joined(op, x) for x in parts)) if isinstance(parts, tuple) else parts


@pytest.mark.parametrize("op", ["and", "or"])
@pytest.mark.parametrize("parts", NESTED)
def test_each_condition_is_there_once_and_the_truth_is_the_same(op, parts):
    whole = joined(op, parts)
    simple = simplify_index(whole)
    found = operands(simple, op)
    assert len(set(found)) == len(found) and set(found) == set(operands(whole, op))
    for i, j in itertools.product(range(4), range(5)):
        at = {I: const(i), J: const(j)}
        assert evaluate(substitute(simple, at), {}) == evaluate(substitute(whole, at), {})


def weighed(q, k, v, m):
    i, j = torch.arange(q.shape[1])[:, None], torch.arange(k.shape[1])
    kept = (j <= i) & m
    weights = (q @ k.mT / 4).masked_fill(~kept, -torch.inf).softmax(-1)
    return torch.nan_to_num(weights * (m & kept)) @ v


def test_a_mask_is_captured_once():
    given = [torch.randn(2, 9, 16) for _ in range(3)] + [torch.rand(9, 9) > 0.3]
    conditions = {n for n in subterms(translate(program_of(weighed, *given)).term) if n.op == "and"}
    assert all(len(operands(n, "and")) == len(set(operands(n, "and"))) == 2 for n in conditions) and conditions
    right = weighed(*(x.double() if x.is_floating_point() else x for x in given))
    torch.testing.assert_close(onepass.compile(weighed)(*given), right, check_dtype=False, atol=1e-5, rtol=1e-5)

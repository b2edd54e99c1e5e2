"""What named values are is shown by laws and facts; the facts hold in float64, and a wrong equation has no proof."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from onepass.egraph.calculus.derivative_certificate import in_full
from onepass.egraph.calculus.equations import Laws
from onepass.egraph.calculus.gradient import gradients
from onepass.egraph.calculus.premises import by_facts, check_premise, is_positive, prove_premise
from onepass.egraph.calculus.reverse_mode import Result
from onepass.egraph.derivation.certificate import CertificateError
from onepass.egraph.derivation.normalize import Normaliser
from onepass.egraph.terms.evaluate import evaluate
from onepass.egraph.terms.ops import (
    const,
    eq,
    exp,
    iota,
    load,
    log,
    lt,
    mantissa,
    max_over,
    rescaled_sum,
    scale,
    sum_over,
    where,
)
from onepass.egraph.terms.term import Dim, Tensor
from onepass.graph.trace import program_of
from onepass.rules import ALL, GATHERED, NORMAL, SHIFT_FREE, SPREAD, TURNED
from onepass.translate.translate import translate

RULES = {rule.name: rule for rule in ALL}
LAWS = Laws(NORMAL, (*SHIFT_FREE, *SPREAD), (*GATHERED, *SPREAD), turned=TURNED)
I, J = Dim("i", 5), Dim("j", 7)
S, W = (load(Tensor(name, "float64", (5, 7)), iota(I), iota(J)) for name in "sw")
X, A = sum_over(J, exp(S)), load(Tensor("a", "float64", (5,)), iota(I))
STATE = rescaled_sum(J, S, W)
FACTS = {
    "the scale of a state": (scale(STATE), max_over(J, S)),
    "the mantissa of a state": (mantissa(STATE), sum_over(J, exp(S - max_over(J, S)) * W)),
    "the exponential of a logarithm": (exp(log(X)), X),
    "a shift by a logarithm": (exp(A - log(X)), exp(A) / X),
    "a row that keeps an element": (where(eq(max_over(J, S), const(-np.inf)), const(0.0), A), None),
    "a quotient times its divisor": ((A / X) * X, A),
    "a product over its factor": ((A * X) / X, A),
    "addends with a factor": (((A * X) + (X * X)) / X, A + X),
    "a sum with a factor": (sum_over(J, S * X) / X, sum_over(J, S)),
}


@pytest.mark.parametrize("name", FACTS)
def test_a_fact_holds_in_float64(name):
    term, expected = FACTS[name]
    found = by_facts(term)
    assert found is not term and (expected is None or found is expected)
    generator = np.random.default_rng(0)
    arrays = {"s": generator.standard_normal((5, 7)), "w": generator.standard_normal((5, 7))}
    arrays |= {"a": generator.standard_normal(5)}
    np.testing.assert_allclose(evaluate(found, arrays, [I]), evaluate(term, arrays, [I]), rtol=1e-12)


SIGNED = sum_over(J, S)
ONE = exp(S)


@pytest.mark.parametrize(
    "term",
    [
        exp(log(SIGNED)),
        exp(A - log(SIGNED)),
        (A / SIGNED) * SIGNED,
        (A * SIGNED) / SIGNED,
        (A * X + A) / X,
        (S / where(lt(S, const(0.0)), ONE, const(0.0))) * where(lt(S, const(0.0)), ONE, const(0.0)),
        sum_over(J, S * ONE) / sum_over(I, ONE),
    ],
    ids=str,
)
def test_what_may_not_be_positive_or_no_factor_stays(term):
    assert by_facts(term) is term


def test_a_masked_sum_is_positive_where_a_row_keeps_an_element():
    assert is_positive(sum_over(J, where(lt(S, const(0.0)), ONE, const(0.0))))
    assert not is_positive(sum_over(J, where(lt(S, const(0.0)), S, const(0.0))))


def masked(q, k, v):
    keep = torch.tril(torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool))
    return torch.softmax((q @ k.mT / 4).masked_fill(~keep, -torch.inf), -1) @ v


@pytest.fixture(scope="module")
def derived():
    captured = translate(program_of(masked, *[torch.randn(2, 40, 16) for _ in range(3)]))
    normaliser = Normaliser(NORMAL)
    results = [
        Result(normaliser.normal(r.term), r.output, r.order, Tensor("g", r.output.dtype, r.output.shape))
        for r in captured.results
    ]
    return gradients(results, ["q", "k", "v"], Laws(NORMAL, SHIFT_FREE, GATHERED)).certificate


def test_the_logarithm_and_the_result_are_shown(derived):
    assert [premise.name for premise in derived.premises] == ["saved_log", "saved_output"]
    for premise in derived.premises:
        check_premise(premise, prove_premise(premise, derived.named, LAWS), derived.named, RULES)


def test_an_equation_that_does_not_hold_has_no_proof(derived):
    for premise in derived.premises:
        for wrong in (replace(premise, right=premise.right * 2.0), replace(premise, left=-premise.left)):
            assert prove_premise(wrong, derived.named, LAWS) is None


def test_a_proof_of_another_equation_is_refused(derived):
    first, second = derived.premises
    proof = prove_premise(first, derived.named, LAWS)
    with pytest.raises(CertificateError, match="side of saved_output starts from"):
        check_premise(second, proof, derived.named, RULES)
    shorter = replace(proof, right=proof.right[1:])
    with pytest.raises(CertificateError, match="saved_log"):
        check_premise(first, shorter, derived.named, RULES)
    with pytest.raises(CertificateError, match="the sides of saved_log are"):
        check_premise(first, replace(proof, right=()), derived.named, RULES)


def test_a_value_that_is_computed_otherwise_is_refused(derived):
    first = derived.premises[0]
    proof = prove_premise(first, derived.named, LAWS)
    wrong = tuple(replace(value, term=value.term + 1.0) for value in derived.named)
    assert in_full(first.right, wrong) is not in_full(first.right, derived.named)
    with pytest.raises(CertificateError, match="saved_log starts from"):
        check_premise(first, proof, wrong, RULES)

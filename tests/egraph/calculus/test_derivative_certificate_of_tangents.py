"""A certificate of tangents shows what was derived; one that was changed anywhere is rejected."""

from dataclasses import replace

import pytest
import torch

from onepass.egraph.calculus.derivative_certificate import check_tangents, in_full
from onepass.egraph.calculus.equations import Laws
from onepass.egraph.calculus.reverse_mode import Result
from onepass.egraph.calculus.tangents import tangents
from onepass.egraph.derivation.certificate import CertificateError, Derivation
from onepass.egraph.derivation.normalize import Normaliser
from onepass.egraph.terms.ops import var
from onepass.egraph.terms.term import Tensor
from onepass.egraph.terms.traversal import tensors
from onepass.graph.trace import program_of
from onepass.rules import ALL, NORMAL, SEPARATED, SHIFT_FREE
from onepass.translate.translate import translate

RULES = {rule.name: rule for rule in ALL}


def attention(q, k, v):
    return torch.softmax(q @ k.mT, -1) @ v


@pytest.fixture(scope="module")
def derived():
    captured = translate(program_of(attention, *[torch.randn(2, n, 16) for n in (40, 300, 300)]))
    normaliser = Normaliser(NORMAL)
    results = [Result(normaliser.normal(r.term), r.output, r.order, None) for r in captured.results]
    given = {t.name: replace(t, name=f"d{t.name}") for t in captured.inputs}
    return results, given, tangents(results, given, Laws(NORMAL, SHIFT_FREE, SEPARATED))


def test_it_shows_the_tangents(derived):
    results, given, found = derived
    assert check_tangents(found.certificate, results, given, RULES) == found.terms
    assert {"saved_log", "saved_mean"} <= {*found.certificate.rules}


def test_no_named_value_is_left(derived):
    found = derived[-1]
    named = {value.tensor.name for value in found.certificate.named}
    assert {"log", "mean", "mean1", "mean2"} <= named
    assert not named & {t.name for t in tensors(found.terms[0])}
    (value, *_) = found.certificate.named
    assert in_full(found.terms[0], [value]) is found.terms[0]


def forged(certificate):
    """Certificates with one thing changed."""
    (chain,), forms, first = certificate.chains, certificate.forms, certificate.premises[0]
    other = replace(chain, goal=chain.goal + chain.goal)
    yield "a goal", replace(certificate, chains=(other,))
    yield "a goal without a step", replace(certificate, chains=(Derivation(chain.start, other.goal, chain.steps),))
    yield "a chain left out", replace(certificate, chains=())
    yield "another result", replace(certificate, forms=(Derivation(forms[0].goal, forms[0].goal),))
    yield "no premises", replace(certificate, premises=())
    yield "a law as a premise", replace(certificate, premises=(replace(first, name=NORMAL[0].name),))
    yield "a premise for all terms", replace(certificate, premises=(replace(first, left=var("x")),))
    wrong = tuple(replace(premise, right=premise.right * 2.0) for premise in certificate.premises)
    yield "other premises", replace(certificate, premises=wrong)


def test_what_was_changed_is_rejected(derived):
    results, given, found = derived
    count = 0
    for what, certificate in forged(found.certificate):
        with pytest.raises(CertificateError):
            check_tangents(certificate, results, given, RULES)
            pytest.fail(what)
        count += 1
    assert count == 8


def test_other_given_tangents_have_another_chain(derived):
    results, given, found = derived
    with pytest.raises(CertificateError, match="no chain"):
        check_tangents(found.certificate, results, {"q": given["q"]}, RULES)
    assert Tensor("dq", "float32", (2, 40, 16)) == given["q"]


def test_laws_that_are_not_given_prove_nothing(derived):
    results, given, found = derived
    used = next(name for name in found.certificate.rules if name in RULES)
    with pytest.raises(CertificateError):
        check_tangents(found.certificate, results, given, {n: r for n, r in RULES.items() if n != used})

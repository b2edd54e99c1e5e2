"""A certificate of gradients shows what was derived; one that was changed anywhere is rejected."""

from dataclasses import replace

import pytest
import torch

from onepass.egraph.calculus.derivative_certificate import check_gradients
from onepass.egraph.calculus.gradient import Laws, gradients
from onepass.egraph.calculus.reverse_mode import Result
from onepass.egraph.derivation.certificate import CertificateError, Derivation
from onepass.egraph.derivation.normalize import Normaliser
from onepass.egraph.terms.ops import var
from onepass.egraph.terms.term import Tensor
from onepass.graph.trace import program_of
from onepass.rules import ALL, GATHERED, NORMAL, SHIFT_FREE
from onepass.translate.translate import translate

RULES = {rule.name: rule for rule in ALL}
WANTED = ["q", "k", "v"]


def attention(q, k, v):
    return torch.softmax(q @ k.mT, -1) @ v


@pytest.fixture(scope="module")
def derived():
    tensors = [torch.randn(2, n, 16) for n in (40, 300, 300)]
    captured = translate(program_of(attention, *tensors))
    normaliser = Normaliser(NORMAL)
    results = [
        Result(normaliser.normal(r.term), r.output, r.order, Tensor("g", r.output.dtype, r.output.shape))
        for r in captured.results
    ]
    return results, gradients(results, WANTED, Laws(NORMAL, SHIFT_FREE, GATHERED))


def test_it_shows_the_gradients(derived):
    results, found = derived
    assert tuple(check_gradients(found.certificate, results, WANTED, RULES)) == found.gradients
    assert {"saved_log", "saved_output"} <= {*found.certificate.rules}


def test_premises_are_about_saved_values(derived):
    _, found = derived
    assert [premise.name for premise in found.equations] == ["saved_log", "saved_output"]
    assert str(found.equations[0].right).startswith("exp(log")


def forged(certificate):
    """Certificates with one thing changed."""
    joints, forms = certificate.chains, certificate.forms
    changed = next(k for k, joint in enumerate(joints) if joint.steps)
    other = replace(joints[changed], goal=joints[changed].goal + joints[changed].goal)
    yield "a goal", replace(certificate, chains=(*joints[:changed], other, *joints[changed + 1 :]))
    unproved = Derivation(joints[changed].start, other.goal, joints[changed].steps)
    yield "a goal without a step", replace(certificate, chains=(*joints[:changed], unproved, *joints[changed + 1 :]))
    yield "a chain left out", replace(certificate, chains=joints[:-1])
    yield "another result", replace(certificate, forms=(Derivation(forms[0].goal, forms[0].goal),))
    yield "no premises", replace(certificate, premises=())
    first = certificate.premises[0]
    yield "a law as a premise", replace(certificate, premises=(replace(first, name=NORMAL[0].name),))
    yield "a premise for all terms", replace(certificate, premises=(replace(first, left=var("x")),))
    wrong = replace(certificate.premises[1], right=certificate.premises[1].right * 2.0)
    yield "another premise", replace(certificate, premises=(first, wrong))


def test_what_was_changed_is_rejected(derived):
    results, found = derived
    count = 0
    for what, certificate in forged(found.certificate):
        with pytest.raises(CertificateError):
            check_gradients(certificate, results, WANTED, RULES)
            pytest.fail(what)
        count += 1
    assert count == 8


def test_laws_that_are_not_given_prove_nothing(derived):
    results, found = derived
    needed = next(name for name in found.certificate.rules if name in RULES)
    with pytest.raises(CertificateError):
        check_gradients(found.certificate, results, WANTED, {n: r for n, r in RULES.items() if n != needed})

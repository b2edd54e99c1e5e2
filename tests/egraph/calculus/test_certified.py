"""Derivatives as data: what was written is read, a name has one meaning, and only what is shown is accepted."""

import json
from dataclasses import replace

import pytest
import torch

from onepass.egraph.calculus.certified import GRADIENTS, TANGENTS, Certified
from onepass.egraph.derivation.certificate import CertificateError
from onepass.egraph.terms.ops import iota, load
from onepass.egraph.terms.term import TermError
from onepass.graph.trace import program_of
from onepass.rules import ALL
from onepass.training.derive_backward import certified_gradients
from onepass.training.derive_tangents import certified_tangents
from onepass.translate.translate import translate

RULES = {rule.name: rule for rule in ALL}


def attention(q, k, v):
    return torch.softmax(q @ k.mT / 4, -1) @ v


def of_attention(mode):
    program = program_of(attention, *[torch.randn(2, n, 16) for n in (40, 300, 300)])
    captured = translate(program)
    if mode == GRADIENTS:
        return certified_gradients(program, captured, [True] * 3, [True])
    return certified_tangents(program, captured, [True] * 3)


@pytest.fixture(scope="module", params=[GRADIENTS, TANGENTS])
def found(request):
    return of_attention(request.param)


@pytest.fixture(scope="module")
def backward():
    return of_attention(GRADIENTS)


def test_what_is_written_is_read_and_holds(found):
    again = Certified.from_json(json.loads(json.dumps(found.to_json())))
    assert again == found
    again.check(RULES)


def test_everything_is_shown(found):
    assert found.unproved == () and found.certificate.premises
    assert [d.tensor.name for d in found.shown] == (["q", "k", "v"] if found.mode == GRADIENTS else ["output"])
    assert found.rows["mul"] == 3 and found.rows["reduce"] == 3 and found.rows["exp"] == found.rows["div"] == 1
    assert "divide_by_constant" in found.rules and not any(name.startswith("saved_") for name in found.rules)


def test_another_derivative_is_refused(found):
    wrong = replace(found.shown[0], term=-found.shown[0].term)
    with pytest.raises(CertificateError, match=f"another {found.mode[:-1]} of {found.shown[0].tensor.name}"):
        replace(found, shown=(wrong, *found.shown[1:])).check(RULES)


def test_chains_from_the_captured_results_are_checked(found):
    (chain,) = found.captured
    with pytest.raises(CertificateError, match="captured output"):
        replace(found, captured=(replace(chain, steps=chain.steps[:-1]),)).check(RULES)
    form = found.certificate.forms[0].goal
    other = replace(chain, start=form, goal=form, steps=())
    with pytest.raises(CertificateError, match="does not end at its form"):
        replace(found, captured=(other,)).check(RULES)


def renamed(value, name):
    return replace(value, tensor=replace(value.tensor, name=name))


def test_a_name_has_one_meaning(backward):
    """Else an input could be called a saved value, and said to be what computes it."""
    log, output = backward.certificate.named
    for name in ("q", "grad_output", "output"):
        named = replace(backward.certificate, named=(renamed(log, name), output))
        with pytest.raises(CertificateError, match=f"{name} is the name of two tensors"):
            replace(backward, certificate=named).check(RULES)


def test_named_values_are_of_the_inputs_and_results_are_what_they_are(backward):
    log, output = backward.certificate.named
    read = load(output.tensor, *map(iota, output.order))
    circle = replace(backward.certificate, named=(replace(log, term=log.term + read), output))
    with pytest.raises(CertificateError, match="log is computed from output, which is no input"):
        replace(backward, certificate=circle).check(RULES)
    other = replace(backward.certificate, named=(log, replace(output, term=output.term * 2.0)))
    with pytest.raises(CertificateError, match="output is a result, and named as something else"):
        replace(backward, certificate=other).check(RULES)


def test_an_equation_without_a_proof_is_named(backward):
    bare = replace(backward, proofs=(None, *backward.proofs[1:]))
    bare.check(RULES)
    assert [premise.name for premise in bare.unproved] == ["saved_log"]


def test_what_is_no_certificate_is_refused(found):
    data = found.to_json()
    for key, wrong in (("mode", "hessians"), ("results", [{}]), ("asked", [["q"]]), ("proofs", [1]), ("named", None)):
        with pytest.raises(TermError):
            Certified.from_json({**data, key: wrong})

"""Plan terms say what is stored between kernels; erased by the law they are terms over the inputs, step by step."""

from dataclasses import replace

import pytest

from onepass.egraph.derivation.certificate import CertificateError, Derivation, check
from onepass.egraph.terms.ops import cast, const, iota, load, make, mantissa, rescaled_sum, scaled, stored, sum_over
from onepass.egraph.terms.term import Dim, Tensor, TermError
from onepass.lowering.plan.records import NotPlannable, Plan, Store
from onepass.lowering.planning.planner import plan_stores
from onepass.lowering.readback.canonical_terms import Canonical
from onepass.lowering.readback.check_plan import checked
from onepass.lowering.readback.erase_stored import erased, erasing, stored_parts
from onepass.lowering.readback.plan_meaning import Meaning, read_back
from onepass.rules import DEMOTION

I, J, D = Dim("i", 300), Dim("j", 300), Dim("d", 16)
Q, K, V = (Tensor(name, "float32", (300, 16)) for name in "qkv")
PART, OTHER, OUT = (Tensor(name, "float32", (300, 300)) for name in ("part", "other", "out"))
scores = sum_over(D, load(Q, iota(I), iota(D)) * load(K, iota(J), iota(D)))


def two_kernels(read, *parts) -> Plan:
    """A kernel stores each part; another one reads them."""
    plans = [plan_stores([Store(term, output, (I, J))]) for term, output in parts]
    (kernel,) = plans[0].kernels
    outputs = tuple(output for _, output in parts)
    last = replace(kernel, name="last", stores=(Store(read, OUT, (I, J)),), inputs=outputs)
    kernels = tuple(replace(plan.kernels[0], name=f"first{n}") for n, plan in enumerate(plans))
    return replace(plans[0], kernels=(*kernels, last), outputs=(OUT,))


def plan_term(plan: Plan):
    return read_back(plan).stored["out"].term


def test_the_law_erases_what_is_stored_at_each_place():
    plan = two_kernels(load(PART, iota(J), iota(I)) * load(PART, iota(I), iota(J)), (scores, PART))
    found = read_back(plan)
    term = found.stored["out"].term
    assert stored_parts(term) == ["part"] and str(term).count(" as part)") == 2
    turned = sum_over(D, load(Q, iota(J), iota(D)) * load(K, iota(I), iota(D)))
    assert erased(found, ["out"]).stored["out"].term is Canonical()(turned * scores)


def test_the_chain_of_steps_is_checked_and_leads_to_the_same_term():
    found = read_back(two_kernels(load(PART, iota(J), iota(I)) + load(PART, iota(I), iota(J)), (scores, PART)))
    chain = erasing(found.stored["out"].term)
    check(chain, DEMOTION)
    assert chain.rules == ("read_of_stored",) and len(chain.steps) == 2
    assert Canonical()(chain.goal) is erased(found, ["out"]).stored["out"].term
    check(Derivation.from_json(chain.to_json()), DEMOTION)


def test_a_stored_part_may_read_another_one():
    plan = two_kernels(
        load(OTHER, iota(I), iota(J)) * const(2.0), (scores, PART), (load(PART, iota(J), iota(I)) + 1.0, OTHER)
    )
    (first, second, last) = plan.kernels
    plan = replace(plan, kernels=(first, replace(second, inputs=(PART,)), replace(last, inputs=(OTHER,))))
    chain = erasing(plan_term(plan))
    assert stored_parts(chain.start) == ["part", "other"] and not stored_parts(chain.goal)
    check(chain, DEMOTION)


@pytest.mark.parametrize("wrong", ["another value", "nothing stored", "a part of it"])
def test_a_forged_step_is_no_instance_of_the_law(wrong):
    chain = erasing(plan_term(two_kernels(load(PART, iota(I), iota(J)) * 2.0, (scores, PART))))
    (step,) = chain.steps
    node = step.old
    new = {"another value": node.args[0] * 2.0, "nothing stored": node, "a part of it": const(0.0)}[wrong]
    start = chain.start if wrong != "nothing stored" else chain.goal
    place = step.position if wrong != "nothing stored" else ()
    after = make("mul", (new, const(2.0)))
    forged = replace(step, before=start, position=place, after=after)
    with pytest.raises(CertificateError):
        check(Derivation(start, after, (forged,)), DEMOTION)


def test_a_kernel_that_reads_another_stored_tensor_is_refused():
    right = two_kernels(load(PART, iota(I), iota(J)) * 2.0, (scores, PART), (scores + 1.0, OTHER))
    wrong = two_kernels(load(OTHER, iota(I), iota(J)) * 2.0, (scores, PART), (scores + 1.0, OTHER))
    asked = [Store(scores * 2.0, OUT, (I, J))]
    assert checked(right, asked).read_back == (
        "read back, part, other by the law read_of_stored: 1 term as asked for"
    )
    assert stored_parts(plan_term(wrong)) == ["other"]
    with pytest.raises(NotPlannable, match="computes something else"):
        checked(wrong, asked)


def test_a_narrower_dtype_is_a_cast():
    meaning = Meaning(scores, (I, J), replace(PART, dtype="bfloat16"))
    assert meaning.read_at((iota(I), iota(J))) is stored(cast(scores, "bfloat16"), "part")
    weak = Meaning(const(1.0), (I, J), PART)
    assert weak.read_at((iota(I), iota(J))) is stored(const(1.0), "part")


def test_dims_and_dtype_are_those_of_the_value():
    assert (stored(scores, "part").dims, stored(scores, "part").dtype) == (scores.dims, "float32")
    assert stored(scores, "part") is not stored(scores, "other")
    state = rescaled_sum(J, scores, const(1.0))
    assert stored(mantissa(state), "part").dims == {I}
    for pair in (state, scaled(scores, const(1.0))):
        with pytest.raises(TermError, match="rescaled state"):
            stored(pair, "part")


def test_no_plan_is_made_of_terms_that_say_what_is_stored():
    with pytest.raises(NotPlannable, match="says what is stored"):
        plan_stores([Store(stored(scores, "part"), OUT, (I, J))])

"""Pattern rules in use: in the search, in certificates, in the text that a graph carries, in the testers."""

from dataclasses import replace

import pytest
import torch

import onepass
from onepass import process_state
from onepass.api.backend import onepass_backend
from onepass.api.graph_pass import GraphPass
from onepass.compiler import compiled_region
from onepass.compiler.optimize import optimize
from onepass.compiler.options import OptionError, Options
from onepass.egraph import (
    Dim,
    Tensor,
    decline,
    decreasing,
    either,
    increasing,
    independent,
    operation_of,
    recursive,
    rule,
)
from onepass.egraph.derivation.certificate import CertificateError, check
from onepass.egraph.search.pattern_grounding import GroundInstance, ground, readable
from onepass.egraph.terms.ops import const, exp, iota, load, make, max_over, reduce, sum_over, var
from onepass.errors import RuleUnproved
from onepass.graph.trace import program_of
from onepass.report.records import reports
from onepass.testing import Refuted, assert_rule
from onepass.translate.translate import translate

pytestmark = pytest.mark.usefixtures("fresh")
LONG = 300  # keys: too many to be held at once, so that passes over them count


@rule(when=lambda f: decreasing(f), trust=True)
def minimum_of_decreasing(f: "operator", s: "j"):
    """min_j f(s) = f(max_j s) for decreasing f"""
    return reduce("min", "j", f(s)), f(max_over("j", s))


@rule(trust=True)
def add_negated(a, b):
    """a + -b = -b + a = a - b"""
    return either(a + -b, -b + a), a - b


@rule(trust=True)
def minimum_by_code(s: "j"):
    """min_j -t = -max_j t"""

    def right(s, j):
        return -max_over(j, s.args[0]) if s.op == "neg" else decline(f"{s.op} is no negation")

    return reduce("min", "j", s), right


@rule(when=lambda f: increasing(f), exact="bitwise")
def maximum_of_increasing(f: "operator", s: "j"):
    """f(max_j s) = max_j f(s) for increasing f"""
    return f(max_over("j", s)), max_over("j", f(s))


@rule(when=lambda f, m: operation_of(f, m))
def operation_out(f: "operator", m: "monoid", s: "j", t: "j"):
    """⊕_j (s ⊕ t) = (⊕_j s) ⊕ (⊕_j t) where ⊕ is what the monoid folds with"""
    return reduce(m, "j", f(s, t)), f(reduce(m, "j", s), reduce(m, "j", t))


def floor(x):
    return make("floor", (x,))


@rule
def floors_collapse(x):
    """⌊…⌊x⌋…⌋ = ⌊x⌋"""
    return floor(recursive(lambda again: floor(either(x, again)))), floor(x)


@rule
def half_and_double(a, b):
    """(a + a) · b = (2 · a) · b = a · (2 · b)"""
    return (a + a) * b, (const(2.0) * a) * b, a * (const(2.0) * b)


@rule(trust=True)
def square_by_code(x, c: "constant"):
    """x ^ c = x · x for c = 2"""
    return make("pow", (x, c)), lambda x, c: x * x if c is const(2.0) else decline("the exponent is not 2")


SOUND = [add_negated, minimum_of_decreasing, maximum_of_increasing, operation_out, floors_collapse, half_and_double]


def attention(q, k, v):
    """Softmax attention that subtracts no maximum: it adds a minimum of negated scores."""
    scores = q @ k.mT / 4
    weights = torch.exp(scores + (-scores).amin(-1, keepdim=True))
    return weights / weights.sum(-1, keepdim=True) @ v


def inputs(rank=4):
    batch = (2, 1, 2)[: rank - 2]
    return [torch.randn(*batch, n, 16) for n in (4, LONG, LONG)]


def passes_and_rules(rules):
    (region,) = onepass.explain(attention, *inputs(), rules=rules).regions
    return region.passes, {step.rule for step in region.derivation}


def test_alternatives_and_operator_variables_save_a_pass():
    assert passes_and_rules([])[0] == (3, 2)
    passes, fired = passes_and_rules([minimum_of_decreasing, add_negated])
    assert passes == (3, 1)
    assert {"minimum_of_decreasing[neg]", "add_negated[1]"} <= fired


def test_a_right_side_of_code_saves_a_pass():
    passes, fired = passes_and_rules([minimum_by_code, add_negated])
    assert passes == (3, 1)
    assert "minimum_by_code #1" in fired


def test_code_is_used_on_its_authors_word_only():
    with pytest.raises(RuleUnproved, match="minimum_by_code"):
        onepass.explain(attention, *inputs(), rules=[replace(minimum_by_code, trusted=False)])
    (region,) = onepass.explain(attention, *inputs(), rules=[minimum_by_code, add_negated]).regions
    assert "minimum_by_code #1" in region.trusted


@pytest.mark.sampled(1)
@pytest.mark.parametrize("rank", [2, 3, 4, 5])
def test_one_rule_for_every_rank(rank):
    arguments = inputs(rank)
    fast = torch.compile(attention, backend=onepass_backend, options={"rules": [minimum_of_decreasing, add_negated]})
    torch.testing.assert_close(fast(*arguments), attention(*arguments), rtol=1e-4, atol=1e-5)
    (region,) = reports()[-1].regions
    assert region.passes == (3, 1)


def test_a_graph_carries_the_results_of_code_and_no_code():
    arguments = inputs()
    options = Options(rules=(minimum_by_code, add_negated), executor="tiled")
    made = compiled_region.make(program_of(attention, *arguments), options, [attention(*arguments).stride()])
    assert all(type(r).__name__ == "Rule" for r in made.options.rules)
    process_state.forget("regions")
    again = compiled_region.read(made.text)
    assert again.report.passes == (3, 1) and again.plan == made.plan


def test_what_declines_is_reported_with_its_reason():
    def lowest(q, k, v):
        scores = q @ k.mT
        return torch.exp(scores - (scores * 2.0).exp().amin(-1, keepdim=True)) @ v

    (region,) = onepass.explain(lowest, *inputs(), rules=[minimum_by_code]).regions
    assert [str(law) for law in region.laws] == ["not used: it declined: exp is no negation"]
    elsewhere = replace(add_negated, device="cuda")
    report = onepass.explain(lowest, *inputs(), rules=[elsewhere])
    assert report.laws == ("add_negated: not used: it declined: it is for cuda only",)


def test_a_pattern_law_is_named_as_it_was_given():
    report = onepass.explain(attention, *inputs(), rules=[minimum_by_code, add_negated])
    assert report.laws == ("minimum_by_code: used in region 1", "add_negated: used in region 1")


def test_statistics_say_what_declined():
    (result,) = translate(program_of(attention, *inputs())).results
    found = optimize(result.term, result.output, result.order, rules=[square_by_code, replace(minimum_by_code)])
    assert "declined" not in found.statistics  # nothing is a power, the minimum is of a negation
    check(found.derivation, [*onepass.rules.ALL, *ground([minimum_by_code], found.captured).rules])


def test_an_equation_that_the_meaning_does_not_bear_out_is_refused():
    j = Dim("j", 3)
    x = load(Tensor("x", "float32", (3,)), iota(j))
    target = reduce("min", j, -x)
    (instance,) = instances_of(minimum_by_code, target)
    instance.verify()
    for wrong in (
        replace(instance, rule=replace(instance.rule, right=max_over(j, x))),
        replace(instance, rule=replace(instance.rule, left=reduce("min", j, x))),
        replace(instance, binding=instance.binding | {"s": x}),
        replace(instance, binding={"s": -x}),
    ):
        with pytest.raises(CertificateError):
            wrong.verify()


def instances_of(law, target) -> list[GroundInstance]:
    applied = law.applications(target)
    rules = ground([law], [target]).rules
    return [GroundInstance(r, law, a.binding) for r, a in zip(rules, applied, strict=True)]


def test_a_guard_is_decided_again():
    j = Dim("j", 3)
    x = load(Tensor("x", "float32", (3,)), iota(j))
    (instance,) = instances_of(minimum_by_code, reduce("min", j, -x))
    stricter = replace(minimum_by_code, guards=(independent(var("s"), of="j"),))
    with pytest.raises(CertificateError, match="a guard of minimum_by_code"):
        replace(instance, origin=stricter).verify()


def test_names_for_caches():
    assert Options(rules=(add_negated,)).digest() != Options(rules=(replace(add_negated, device="cuda"),)).digest()
    with pytest.raises(OptionError, match=r"rule minimum_by_code \(.*test_pattern_rule.py:\d+\)"):
        Options(rules=(minimum_by_code,)).digest()
    assert GraphPass(rules=[add_negated]).uuid() is not None
    assert GraphPass(rules=[minimum_by_code]).uuid() is None


@pytest.mark.sampled(1)
@pytest.mark.parametrize("law", SOUND, ids=lambda law: law.name)
def test_the_testers_take_pattern_rules(law):
    assert readable(law)
    assert_rule(law, examples=50)
    for reading in law.rules:
        assert_rule(reading, examples=5)


@pytest.mark.slow
def test_the_testers_run_the_code_of_a_right_side():
    assert_rule(square_by_code, examples=5)

    @rule
    def wrong_square(x, c: "constant"):
        """x ^ c = x + x for c = 2"""
        return make("pow", (x, c)), lambda x, c: x + x if c is const(2.0) else decline("the exponent is not 2")

    with pytest.raises(Refuted, match="c = 2"):
        assert_rule(wrong_square, examples=20)


def test_a_class_that_is_forgotten_is_refuted():
    unguarded = replace(maximum_of_increasing, name="maximum_of_any", guards=())
    with pytest.raises(Refuted, match="rule maximum_of_any"):
        assert_rule(unguarded)


def test_a_rule_with_too_many_readings_is_matched_itself():
    @rule(exact="bitwise")
    def any_two(f: "operator", g: "operator", h: "operator", s: "j"):
        """f(g(h(s))) + 0 = f(g(h(s)))"""
        return f(g(h(s))) + 0.0, f(g(h(s)))

    assert not readable(any_two)
    x = load(Tensor("x", "float32", (3,)), iota(Dim("j", 3)))
    target = exp(-exp(x)) + 0.0
    (equation,) = ground([any_two], [sum_over(Dim("j", 3), target)]).rules
    assert (equation.left, equation.right) == (target, target.args[0])

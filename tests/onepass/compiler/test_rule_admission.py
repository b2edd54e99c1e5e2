"""Rules that a user gives: refuted ones raise with their numbers, undecided ones unless trusted, each decided once."""

import json
import os
import pickle
import subprocess
import sys

import pytest
import torch

import onepass
from onepass import process_state
from onepass.compiler import disk_cache, rule_admission
from onepass.compiler.options import Options
from onepass.egraph import RuleError
from onepass.egraph.rewrite.pattern import either
from onepass.egraph.terms.ops import exp, max_over, reduce, sum_over, tanh
from onepass.errors import OptionError, RuleRefuted, RuleUnproved
from onepass.proofs.verdict import Verdict
from onepass.rules.reductions import divisor_out_of_sum
from onepass.rules.softmax import power_of_two_below_maximum

pytestmark = pytest.mark.usefixtures("fresh")


@onepass.rule
def shift_unguarded(s: "j", c: "j"):
    """(s - c) - max_j (s - c) = s - max_j s"""
    return (s - c) - max_over("j", s - c), s - max_over("j", s)


@onepass.rule(when=lambda c: onepass.independent(c, of="j"))
def shift_guarded(s: "j", c):
    """(s - c) - max_j (s - c) = s - max_j s when c does not depend on j"""
    return (s - c) - max_over("j", s - c), s - max_over("j", s)


@onepass.rule
def subtraction_undone(a, b):
    """(a + b) - b = a"""
    return (a + b) - b, a


def centred(q, k, v):
    scores = q @ k.mT / 8
    return torch.softmax(scores - scores.mean(-1, keepdim=True), dim=-1) @ v


def inputs():
    return [torch.randn(1, 2, 16, 4) for _ in range(3)]


@pytest.fixture
def verdicts(monkeypatch):
    """What the provers answer, by name of rule, in place of what they would find; and the names that were asked."""
    from onepass.proofs import check as provers

    answers, asked = {}, []

    def decided(rule):
        asked.append(rule.name)
        return Verdict(rule.name, answers.get(rule.name, "proved"), "as told", 0.0, None, "")

    monkeypatch.setattr(provers, "check", decided)
    return answers, asked


DOORS = {
    "options": lambda rules: Options.read({"rules": rules}),
    "pass": lambda rules: onepass.GraphPass(rules=rules),
    "explain": lambda rules: onepass.explain(centred, *inputs(), rules=rules),
}


@pytest.mark.parametrize("door", DOORS)
def test_a_refuted_rule_raises_with_its_numbers(door):
    with pytest.raises(RuleRefuted) as raised:
        DOORS[door]([shift_unguarded])
    message = str(raised.value)
    line = f"{__file__}:{shift_unguarded.source.rpartition(':')[2]}"
    assert message.startswith(f"rule shift_unguarded ({line}) is no law")
    assert "left side:" in message and "right side:" in message and "dim j = " in message


def test_a_refuted_rule_stops_the_first_call_of_a_compiled_model():
    compiled = torch.compile(
        centred, backend=onepass.onepass_backend, options={"rules": [shift_unguarded], "inner": "eager"}
    )
    with pytest.raises(Exception, match=r"rule shift_unguarded .* is no law, and nothing was compiled with it"):
        compiled(*inputs())


@pytest.mark.parametrize("trust", [False, True])
def test_trust_does_not_save_a_refuted_rule(trust, verdicts):
    answers, _ = verdicts
    law = onepass.rule(trust=trust)(_plain_law)
    answers[law.name] = "refuted"
    with pytest.raises(RuleRefuted):
        Options.read({"rules": [law]})


def _plain_law(a, b):
    """(a + b) - b = a"""
    return (a + b) - b, a


def test_an_undecided_rule_raises_unless_it_is_trusted(verdicts):
    answers, _ = verdicts
    answers["_plain_law"] = "unknown"
    with pytest.raises(
        RuleUnproved, match=r"is neither proved nor refuted; decorate it with @onepass.rule\(trust=True"
    ):
        Options.read({"rules": [onepass.rule(_plain_law)]})
    trusted = onepass.rule(trust=True)(_plain_law)
    assert Options.read({"rules": [trusted]}).rules == (trusted,)
    assert rule_admission.unproved(trusted)


def test_a_trusted_rule_that_is_proved_is_not_called_unproved(verdicts):
    trusted = onepass.rule(trust=True)(_plain_law)
    assert rule_admission.unproved(trusted), "nobody has asked the provers yet"
    Options.read({"rules": [trusted]})
    assert not rule_admission.unproved(trusted)


def test_every_report_names_what_is_only_trusted(verdicts, tmp_path):
    answers, _ = verdicts
    answers["shift_guarded"] = "unknown"
    law = onepass.rule(when=lambda c: onepass.independent(c, of="j"), trust=True)(_shift)
    answers[law.name] = "unknown"
    report = onepass.explain(centred, *inputs(), rules=[law])
    said = f"{law.name}: not proved, used on its author's word"
    assert said in str(report)
    assert json.loads(report.json())["trusted"] == [law.name]
    assert repr(report) == f"<Report: 1 fused by unproved rules too ({law.name})>"
    (step,) = [step for step in report.derivation if step.rule == law.name]
    assert step.trusted
    assert law.name in report.save(tmp_path / "page.html").read_text()


def _shift(s: "j", c):
    """(s - c) - max_j (s - c) = s - max_j s when c does not depend on j"""
    return (s - c) - max_over("j", s - c), s - max_over("j", s)


def nearest(q, k, v):
    energy = q.square().sum(-1, keepdim=True) - 2 * (q @ k.mT)
    weights = torch.exp(energy.amin(-1, keepdim=True) - energy)
    return weights / weights.sum(-1, keepdim=True) @ v


@onepass.rule(when=lambda c: onepass.independent(c, of="j"))
def least_first(s: "j", c):
    """min_j (c - s) - (c - s) = s - max_j s when c does not depend on j"""
    return reduce("min", "j", c - s) - (c - s), s - max_over("j", s)


def test_a_proved_rule_changes_the_kernel(verdicts):
    before, after = (onepass.explain(nearest, *inputs(), rules=rules) for rules in ([], [least_first]))
    assert (before.passes, after.passes) == ((3, 2), (3, 1))
    assert "least_first" in [step.rule for step in after.derivation] and after.trusted == ()


# Decided once --------------------------------------------------------------------------------------------------------


def test_a_rule_is_decided_once_in_a_process_and_once_on_a_disk(verdicts):
    _, asked = verdicts
    for _ in range(3):
        Options.read({"rules": [subtraction_undone]})
        process_state.forget("verdicts")
    assert asked == ["subtraction_undone"]


def test_another_law_is_decided_anew(verdicts):
    _, asked = verdicts
    Options.read({"rules": [shift_guarded]})

    @onepass.rule(when=lambda c, s: (onepass.independent(c, of="j"), onepass.independent(s, of="j")))
    def shift_guarded_again(s: "j", c):
        """(s - c) - max_j (s - c) = s - max_j s"""
        return (s - c) - max_over("j", s - c), s - max_over("j", s)

    Options.read({"rules": [shift_guarded_again]})
    assert asked == ["shift_guarded", "shift_guarded_again"]


def test_without_a_disk_the_process_remembers(verdicts, monkeypatch):
    _, asked = verdicts
    monkeypatch.setenv("ONEPASS_CACHE", "off")
    for _ in range(2):
        Options.read({"rules": [subtraction_undone]})
    assert asked == ["subtraction_undone"]


def test_shipped_laws_are_not_decided_again(verdicts):
    Options.read({"rules": [divisor_out_of_sum]})
    assert verdicts[1] == []


def test_a_compiled_graph_does_not_decide_again(verdicts):
    _, asked = verdicts
    options = Options.read({"rules": [shift_guarded]})
    asked.clear()
    assert Options.from_carried(options.carried()).rules == (shift_guarded,)
    assert asked == []


LOADED = """
import sys, torch, onepass
onepass.explain(lambda q, k, v: torch.softmax(q @ k.mT, -1) @ v, *[torch.randn(1, 2, 8, 4)] * 3)
print([name for name in sys.modules if name.startswith("onepass.proofs")])
"""


@pytest.mark.slow
def test_without_rules_no_prover_is_loaded():
    path = os.pathsep.join(sys.path)
    done = subprocess.run(
        [sys.executable, "-c", LOADED], env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True
    )
    assert done.stdout.strip() == "[]", done.stderr


# Pattern rules --------------------------------------------------------------------------------------------------------


@onepass.rule
def odd_functions(x):
    """f(-x) = -tanh(x) for f = tanh and for another"""
    return either(tanh(-x), exp(-x)), -tanh(x)


def test_a_pattern_rule_is_decided_reading_by_reading(verdicts):
    answers, asked = verdicts
    Options.read({"rules": [odd_functions]})
    assert len(asked) == len(odd_functions.rules) == 2
    assert onepass.check(odd_functions).rule == "odd_functions"
    answers[odd_functions.rules[1].name] = "refuted"
    process_state.forget("verdicts")
    disk_cache.clear()
    with pytest.raises(RuleRefuted, match="rule odd_functions"):
        Options.read({"rules": [odd_functions]})


def test_code_on_the_right_is_used_on_trust_only(verdicts):
    def doubled(x):
        """x + x = 2 · x"""
        return x + x, lambda x: x * 2.0

    assert onepass.check(onepass.rule(doubled)).status == "unknown"
    with pytest.raises(RuleUnproved, match="a side of it is code"):
        Options.read({"rules": [onepass.rule(doubled)]})
    assert Options.read({"rules": [onepass.rule(trust=True)(doubled)]}).rules
    assert verdicts[1] == []


# What is refused before ----------------------------------------------------------------------------------------------


def test_a_name_of_a_shipped_law_is_taken():
    def divisor_out_of_sum(s: "j", c):
        """Σ_j (s / c) = (Σ_j s) / c"""
        return sum_over("j", s / c), sum_over("j", s) / c

    with pytest.raises(OptionError, match=r"rule divisor_out_of_sum .* has the name of a law of onepass that says"):
        Options(rules=[onepass.rule(divisor_out_of_sum)])


def test_check_is_public_and_takes_rules_only():
    assert onepass.check(shift_unguarded).status == "refuted"
    with pytest.raises(TypeError, match="is no rule: decorate it with"):
        onepass.check(_plain_law)


def test_errors_survive_pickling():
    for error in (RuleRefuted("name", "file:1", "numbers"), RuleUnproved("name", "file:1", "why")):
        again = pickle.loads(pickle.dumps(error))
        assert (str(again), again.rule) == (str(error), "name")
    assert not issubclass(RuleRefuted, RuleError)


@onepass.rule
def factors_swapped(a, b):
    """a · b = b · a"""
    return a * b, b * a


def test_what_became_of_each_rule_is_said(verdicts):
    """Who wrote it wants to know whether it matched."""
    given = [subtraction_undone, least_first, factors_swapped]
    report = onepass.explain(nearest, *inputs(), rules=given)
    (region,) = report.regions
    assert [(law.name, law.used, law.matches > 0) for law in region.laws] == [
        ("subtraction_undone", False, False),
        ("least_first", True, True),
        ("factors_swapped", False, True),
    ]
    never, used, idle = report.laws
    assert never == "subtraction_undone: not used: it matched nothing"
    assert used == "least_first: used in region 1"
    assert idle.endswith(" times, and the form chosen does without it")
    assert "law         least_first: used\n" in f"{report}\n"
    written = json.loads(report.json())
    assert written["laws"] == [*report.laws] and written["given"] == [rule.name for rule in given]
    again = onepass.explain(nearest, *inputs(), rules=given)
    assert "no search" in again.regions[0].cache and again.laws == report.laws


def test_of_a_rule_that_was_not_given_nothing_is_said(verdicts):
    onepass.explain(nearest, *inputs(), rules=[least_first])
    report = onepass.explain(nearest, *inputs())
    assert report.laws == () == report.regions[0].laws


def test_rules_of_a_function_without_a_region_are_not_used(verdicts):
    def refused(q, k, v):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return nearest(q, k, v)

    report = onepass.explain(lambda x: x + 1, torch.zeros(3), rules=[least_first])
    assert "law least_first: not used: there is no region\n" in str(report)
    report = onepass.explain(refused, *inputs(), rules=[least_first])
    assert report.refusals and report.laws == ("least_first: not used: no region was searched",)


def softmax(s):
    e = exp(s - max_over("j", s))
    return e / sum_over("j", e)


@onepass.rule
def shift_left_out(s: "j"):
    """softmax s = exp(s) / Σ_j exp(s)"""
    return softmax(s), exp(s) / sum_over("j", exp(s))


@onepass.rule(exact="nothing overflows before it is divided")
def shift_left_out_and_said(s: "j"):
    """softmax s = exp(s) / Σ_j exp(s)"""
    return softmax(s), exp(s) / sum_over("j", exp(s))


@onepass.rule
def exponentials_kept(s: "j"):
    """Σ_j (exp(s) + exp(s)) = 2 · Σ_j exp(s)"""
    return sum_over("j", exp(s) + exp(s)), 2.0 * sum_over("j", exp(s))


@pytest.mark.parametrize(
    ("law", "said"),
    [
        (shift_left_out, True),
        (shift_left_out_and_said, False),
        (power_of_two_below_maximum, False),
        (exponentials_kept, False),
    ],
)
def test_a_verdict_names_exponentials_that_floats_may_not_hold(law, said):
    """In floats, exp(s) / Σ_j exp(s) is 0 / 0 for s = -1000; a proof over the real numbers does not see it."""
    verdict = onepass.check(law)
    assert verdict.status == "proved"
    assert ("no exponential overflows or vanishes as a float" in str(verdict)) == said
    assert len(str(verdict).splitlines()) == 1

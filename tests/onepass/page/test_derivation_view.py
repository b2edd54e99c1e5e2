"""Steps of a derivation with marks: what is shown is the chain of the certificate, and each law has its verdict."""

import pytest
import torch

import onepass
from onepass.egraph.derivation import ledger
from onepass.egraph.derivation.certificate import Derivation
from onepass.page import derivation_view as module
from onepass.page.derivation_view import MARKS, derivation_view, law_views
from onepass.report.records import Step

pytestmark = pytest.mark.usefixtures("own_reports")
X = torch.randn(2, 20, 16)


def attend(q, k, v):
    return torch.softmax(q @ k.mT * 0.5 * 0.25, -1) @ v / 2


@pytest.fixture(scope="module")
def region():
    (found,) = onepass.explain(attend, X, X.clone(), X.clone()).regions
    return found


def plain(text: str) -> str:
    return text.replace(MARKS[0], "").replace(MARKS[1], "")


def test_each_step_begins_where_the_last_one_ends(region):
    written = region.certificates[0]["derivation"]
    view = derivation_view(written, {step.rule: step.law for step in region.derivation})
    steps = Derivation.from_json(written).steps
    shown = [step for stretch in view.stretches for step in stretch.steps]
    assert len(shown) == len(steps) == view.steps > 3
    assert [step.number for step in shown] == list(range(1, len(steps) + 1))
    assert [step.rule for step in shown] == [step.rule for step in steps] and all(step.law for step in shown)
    for stretch in view.stretches:
        for one, other in zip(stretch.steps, stretch.steps[1:]):
            assert plain(one.after) == plain(other.before)
        for step in stretch.steps:
            for text in (step.before, step.after):
                assert text.count(MARKS[0]) == text.count(MARKS[1]) >= 1
            assert plain(step.before) != plain(step.after) or step.rule == "index arithmetic"
    assert all(name.startswith("t") and text for stretch in view.stretches for name, text in stretch.names)


def test_a_chain_of_many_steps_is_cut(region, monkeypatch):
    monkeypatch.setattr(module, "MAX_STEPS", 2)
    view = derivation_view(region.certificates[0]["derivation"], {})
    assert sum(len(stretch.steps) for stretch in view.stretches) == 2 and view.steps > 3


def test_a_law_has_the_verdict_of_the_ledger(region):
    laws = {law.name: law for law in law_views(region.derivation)}
    assert {*laws} == {step.rule for step in region.derivation}
    for name, law in laws.items():
        entry = ledger.entries()[name]
        assert law.status == entry["verdict"] == "proved" and entry["method"].replace("cells", "cases") in law.verdict
        assert {*entry["assuming"]} <= {*law.assuming} and law.anchor == f"law-{name}"
    assert "nothing overflows before it is divided" in laws["divisor_out_of_sum"].assuming


def test_a_law_of_the_user_is_not_called_proved():
    mine, other = law_views([Step("mine", "a = b", trusted=True), Step("other", "c = d")])
    assert mine.status == "trusted" and "author's word" in mine.verdict
    assert other.status == "checked" and "when it was given" in other.verdict

"""The ledger is of these rules as they are now, the zoo is never proved, and the score is about every rule."""

from dataclasses import replace

import pytest

from onepass import given, rules
from onepass.egraph import ledger
from onepass.proofs import broken
from onepass.proofs import ledger as writer
from onepass.proofs.check import check
from onepass.proofs.score import score
from onepass.proofs.verdict import Verdict


def test_the_ledger_is_of_the_rules_as_they_are():
    assert list(ledger.entries()) == [law.name for law in rules.ALL], "run `python -m onepass prove --quick`"
    assert ledger.unproved(rules.ALL) == [], "run `python -m onepass prove --quick`"


def test_an_edited_rule_is_not_in_the_ledger():
    law = next(law for law in rules.ALL if law.guards)
    assert not ledger.is_proved(replace(law, guards=()))
    assert not ledger.is_proved(replace(law, exact="on a good day"))
    assert ledger.is_proved(replace(law, law="said otherwise", source="elsewhere"))


def test_a_shipped_rule_that_is_not_in_the_ledger_is_named_by_reports(monkeypatch):
    assert not given.unproved(rules.ALL[0])
    monkeypatch.setattr(ledger, "entries", dict)
    assert given.unproved(rules.ALL[0])


def test_the_ledger_is_written_once(tmp_path, monkeypatch):
    path = tmp_path / "ledger.toml"
    for module in (ledger, writer):
        monkeypatch.setattr(module, "LEDGER", path)
    verdicts = [Verdict(law.name, "proved", "by decree", 0.1) for law in rules.ALL]
    ledger.entries.cache_clear()
    try:
        writer.write(verdicts)
        first = path.read_text()
        assert ledger.unproved(rules.ALL) == []
        writer.write([replace(v, seconds=0.2) for v in verdicts])
        assert path.read_text() == first
        writer.write([replace(verdicts[0], status="unknown"), *verdicts[1:]])
        assert ledger.unproved(rules.ALL) == [rules.ALL[0].name]
    finally:
        ledger.entries.cache_clear()


@pytest.mark.parametrize("law", broken.ZOO, ids=lambda law: law.name)
def test_the_zoo_is_never_proved(law):
    verdict = check(law)
    assert verdict.status != "proved", str(verdict)
    assert verdict.seconds < 20  # by the clock, on a machine that may be busy: idle it is under 2
    assert verdict.counterexample or verdict.reason


def test_the_zoo_says_why_each_tempts_and_where_it_fails():
    assert len(broken.ZOO) >= 30
    assert all("Tempts: " in law.law and "Wrong: " in law.law for law in broken.ZOO)
    assert sum(check(law).status == "refuted" for law in broken.ZOO) >= len(broken.ZOO) - 3


def test_a_score_counts_every_mutant_and_the_zoo():
    law = next(law for law in rules.ALL if law.name == "choice_of_equals")
    found = score([law], broken.ZOO[:2])
    assert len(found.refuted) >= 3 and found.wrongly_proved == ()
    assert "are not proved" in str(found)

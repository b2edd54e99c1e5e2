"""The ledger is of these rules as they are now, the zoo is never proved, and the score is about every rule."""

from dataclasses import replace

import pytest
import torch

import onepass
from onepass import rules
from onepass.compiler import rule_admission
from onepass.egraph.derivation import ledger
from onepass.proofs import ledger as writer
from onepass.proofs import unsound_rules
from onepass.proofs.check import check
from onepass.proofs.mutation_score import score
from onepass.proofs.verdict import Verdict


def test_the_ledger_is_of_the_rules_as_they_are():
    assert list(ledger.entries()) == [law.name for law in rules.ALL], "run `python -m onepass prove --quick`"
    assert ledger.unproved(rules.ALL) == [], "run `python -m onepass prove --quick`"


def test_an_edited_rule_is_not_in_the_ledger():
    law = next(law for law in rules.ALL if law.guards)
    assert not ledger.is_proved(replace(law, guards=()))
    assert not ledger.is_proved(replace(law, exact="on a good day"))
    assert ledger.is_proved(replace(law, law="said otherwise", source="elsewhere"))


def meaning(monkeypatch, tmp_path, module: str, old: str, new: str) -> None:
    """Lets the modules that say what laws mean be copies, one of them edited."""
    for name in ledger.MEANINGS:
        text = (ledger.EGRAPH / f"{name}.py").read_text()
        assert name != module or old in text
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / f"{name}.py").write_text(text.replace(old, new) if name == module else text)
    monkeypatch.setattr(ledger, "EGRAPH", tmp_path)
    monkeypatch.setattr(ledger, "meanings", ledger.meanings.__wrapped__)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "old", "new"),
    [
        ("terms/ops", "np.floor_divide", "lambda a, b: np.trunc(a / b)"),
        ("rewrite/guard", "lambda x, dim: dim not in x.dims", "lambda x, dim: True"),
        ("rewrite/rule", "Restriction(values_finite=True)", "Restriction()"),
        ("terms/evaluate", "np.trunc(value)", "np.round(value)"),
    ],
)
def test_nothing_counts_as_proved_once_a_meaning_is_edited(module, old, new, monkeypatch, tmp_path):
    meaning(monkeypatch, tmp_path, module, old, new)
    assert not any(map(ledger.is_proved, rules.ALL))


@pytest.mark.slow
def test_a_comment_and_a_docstring_are_no_meanings(monkeypatch, tmp_path):
    meaning(monkeypatch, tmp_path, "terms/ops", '"""A literal. A float', '"""A literal, in other words. A float')
    assert all(map(ledger.is_proved, rules.ALL))
    assert ledger.digest_of_code(["x = 1  # one\n\nimport os\n"]) == ledger.digest_of_code(["x = 1\n"])
    assert ledger.digest_of_code(["x = 1\n"]) != ledger.digest_of_code(["x = 2\n"])
    assert ledger.digest_of_code(["x = '#1'\n"]) != ledger.digest_of_code(["x = '#2'\n"])


def test_a_shipped_law_that_is_not_proved_is_refused_and_the_report_says_so(monkeypatch):
    def attention(q, k, v):
        return torch.softmax(q @ k.mT / 8, -1) @ v

    known = ledger.entries()
    monkeypatch.setattr(ledger, "entries", lambda: {n: e for n, e in known.items() if n != "divide_by_constant"})
    q, k, v = (torch.randn(1, 2, 16, 16) for _ in range(3))
    with monkeypatch.context() as m:
        m.setenv("ONEPASS_CACHE", "off")
        report = onepass.explain(attention, q, k, v)
        got = torch.compile(attention, backend="onepass", options={"inner": "eager", "strict": True})(q, k, v)
    assert "divide_by_constant" not in str(report.derivation) and "rescale_sum" in str(report.derivation)
    assert "law divide_by_constant is not used: the ledger does not call it proved" in str(report)
    torch.testing.assert_close(got, attention(q.double(), k.double(), v.double()).float())


def test_a_shipped_rule_that_is_not_in_the_ledger_is_named_by_reports(monkeypatch):
    assert not rule_admission.unproved(rules.ALL[0])
    monkeypatch.setattr(ledger, "entries", dict)
    assert rule_admission.unproved(rules.ALL[0])


def test_the_ledger_is_written_once(tmp_path, monkeypatch):
    path = tmp_path / "ledger.toml"
    for module in (ledger, writer):
        monkeypatch.setattr(module, "LEDGER", path)
    verdicts = [Verdict(law.name, "proved", "by decree", 0.1) for law in rules.ALL]
    ledger.forget()
    try:
        writer.write(verdicts)
        first = path.read_text()
        assert ledger.unproved(rules.ALL) == []
        writer.write([replace(v, seconds=0.2) for v in verdicts])
        assert path.read_text() == first
        writer.write([replace(verdicts[0], status="unknown"), *verdicts[1:]])
        assert ledger.unproved(rules.ALL) == [rules.ALL[0].name]
    finally:
        ledger.forget()


@pytest.mark.sampled(12)
@pytest.mark.parametrize("law", unsound_rules.ZOO, ids=lambda law: law.name)
def test_the_zoo_is_never_proved(law):
    verdict = check(law)
    assert verdict.status != "proved", str(verdict)
    assert verdict.seconds < 20  # by the clock, on a machine that may be busy: idle it is under 2
    assert verdict.counterexample or verdict.reason


@pytest.mark.slow
def test_the_zoo_says_why_each_tempts_and_where_it_fails():
    assert len(unsound_rules.ZOO) >= 30
    assert all("Tempts: " in law.law and "Wrong: " in law.law for law in unsound_rules.ZOO)
    assert sum(check(law).status == "refuted" for law in unsound_rules.ZOO) >= len(unsound_rules.ZOO) - 3


def test_a_score_counts_every_mutant_and_the_zoo():
    law = next(law for law in rules.ALL if law.name == "choice_of_equals")
    found = score([law], unsound_rules.ZOO[:2])
    assert len(found.refuted) >= 3 and found.wrongly_proved == ()
    assert "are not proved" in str(found)

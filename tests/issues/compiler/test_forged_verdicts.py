"""A verdict in the disk cache was believed by a digest that everybody can compute. Who may write to the folder could
make onepass take a rule that is no law for proved.
"""

import json

import pytest

import onepass
from onepass import process_state
from onepass.compiler import disk_cache, rule_admission
from onepass.compiler.options import Options
from onepass.egraph.rewrite.serialization import digest
from onepass.egraph.terms.ops import max_over
from onepass.errors import RuleRefuted

pytestmark = pytest.mark.usefixtures("fresh")


@onepass.rule
def shift_unguarded(s: "j", c: "j"):
    """(s - c) - max_j (s - c) = s - max_j s"""
    return (s - c) - max_over("j", s - c), s - max_over("j", s)


@pytest.fixture
def entry():
    """Of the verdict, as the provers give it."""
    assert rule_admission.known(shift_unguarded).status == "refuted"
    process_state.forget("verdicts")
    (path,) = disk_cache.folder().glob("*/*.json")
    return path


def forged(path):
    entry = json.loads(path.read_text())
    entry["body"]["status"] = "proved"
    path.write_text(json.dumps(entry))


def forged_with_a_digest(path):
    forged(path)
    entry = json.loads(path.read_text())
    path.write_text(json.dumps({**entry, "digest": digest(entry["body"]), "signature": digest(entry["body"])}))


def damaged(path):
    path.write_text(path.read_text()[:-10])


def without_a_status(path):
    disk_cache.write(path.stem, {"text": ""})


def of_another_word(path):
    disk_cache.write(path.stem, {"status": ["proved"], "text": ""})


CHANGES = [forged, forged_with_a_digest, damaged, without_a_status, of_another_word]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_it_is_decided_anew(change, entry, monkeypatch):
    asked, decided = [], rule_admission.check
    monkeypatch.setattr(rule_admission, "check", lambda rule: asked.append(rule.name) or decided(rule))
    change(entry)
    with pytest.raises(RuleRefuted):
        Options.read({"rules": [shift_unguarded]})
    assert asked == ["shift_unguarded"]


def test_an_honest_one_is_not(entry, monkeypatch):
    monkeypatch.setattr(rule_admission, "check", lambda rule: pytest.fail("decided again"))
    with pytest.raises(RuleRefuted):
        Options.read({"rules": [shift_unguarded]})

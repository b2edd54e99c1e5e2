"""Entries of the disk cache were named by the sources in each package's own folder. An edit in a folder below it, or of
a table that is read at run time, left entries valid that other code had made. Provers' verdicts had the same fault.
"""

import shutil
from pathlib import Path

import pytest

import onepass
from onepass import egraph, lowering, proofs, rules
from onepass.compiler import disk_cache, rule_admission

NAMES = {
    "results": lambda: disk_cache.versions.__wrapped__()["source"],
    "verdicts": lambda: rule_admission._provers.__wrapped__(),
}
EDITS = [  # of a package's file, and what is named anew by it
    (onepass, "compiler/disk_cache.py", ["results"]),
    (onepass, "bench/run.py", ["results"]),
    (rules, "softmax.py", ["results"]),
    (lowering, "schedule/solver.py", ["results"]),
    (lowering, "schedule/solved.json", ["results"]),
    (lowering, "schedule/deeper/new.py", ["results"]),
    (lowering, "schedule/__pycache__/solver.py", []),
    (lowering, "README.md", []),
    (egraph, "rewrite/match.py", ["results", "verdicts"]),
    (egraph, "deeper/new.py", ["results", "verdicts"]),
    (proofs, "check.py", ["verdicts"]),
    (proofs, "ledger.toml", ["verdicts"]),
    (proofs, "deeper/new.py", ["verdicts"]),
]


@pytest.mark.sampled(7)
@pytest.mark.parametrize("package, file, named", EDITS, ids=lambda value: value if isinstance(value, str) else "")
def test_an_edit_names_what_depends_on_it_anew(package, file, named, tmp_path, monkeypatch):
    home = Path(package.__file__).parent
    copy = tmp_path / home.name
    shutil.copytree(home, copy, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(package, "__file__", str(copy / "__init__.py"))
    before, path = {kind: name() for kind, name in NAMES.items()}, copy / file
    path.parent.mkdir(exist_ok=True)
    path.write_text((path.read_text() if path.exists() else "") + "\n")
    assert [kind for kind, name in NAMES.items() if name() != before[kind]] == named


def test_a_copy_elsewhere_has_the_same_name(tmp_path, monkeypatch):
    before = {kind: name() for kind, name in NAMES.items()}
    for package in (onepass, egraph, rules, lowering, proofs):
        home = Path(package.__file__).parent
        shutil.copytree(home, tmp_path / home.name)
        monkeypatch.setattr(package, "__file__", str(tmp_path / home.name / "__init__.py"))
    assert {kind: name() for kind, name in NAMES.items()} == before


def test_a_schedule_that_other_code_solved_is_not_taken_over(monkeypatch, tmp_path):
    monkeypatch.setenv("ONEPASS_CACHE", str(tmp_path))
    assert disk_cache.OF_THIS_VERSION.write("a" * 40, {"status": "unknown"})
    assert disk_cache.OF_THIS_VERSION.read("a" * 40) == {"status": "unknown"}
    monkeypatch.setattr(disk_cache, "versions", lambda: {"source": "edited"})
    assert disk_cache.OF_THIS_VERSION.read("a" * 40) is None

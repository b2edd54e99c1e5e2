"""The files of laws: what is in them, what a failure does, and that the tactics prove no false law."""

import shutil
from dataclasses import replace

import pytest

from onepass.proofs import rocq_audit
from onepass.proofs.rocq import compiler, derivatives, laws
from onepass.proofs.rocq.compiler import TheoryError
from onepass.rules import ALL, mask
from tests.proofs import false_laws

FALSE = [law for law in vars(false_laws).values() if type(law).__name__ == "Rule"]
LISTED = rocq_audit.committed()
NO_EXCEPTIONS = replace(LISTED, unchecked={})


def test_every_law_has_a_module():
    modules = laws.by_module(ALL)
    assert [law for found in modules.values() for law in found] != [] and sum(map(len, modules.values())) == len(ALL)
    assert modules["Laws_mask"][0] in mask.NORMAL


def test_a_law_that_fails_is_dropped_and_named(monkeypatch, tmp_path):
    rules = list(mask.NORMAL[:3])
    bad, files = rules[1].name, []

    def compile_file(module):
        files.append((tmp_path / f"{module}.v").read_text())
        lines = files[-1].splitlines()
        for number, line in enumerate(lines, 1):
            if f"Theorem {bad} " in line:
                raise TheoryError(f'File "./{module}.v", line {number + 1}, characters 1-2:\nError: Timeout!')
        return ""

    monkeypatch.setattr(compiler, "BUILD", tmp_path)
    monkeypatch.setattr(laws, "compile_file", compile_file)
    found = laws.prove_module("Laws_mask", rules)
    assert found.why_not == {bad: "Error: Timeout!"} and list(found.checked) == [rules[0].name, rules[2].name]
    assert len(files) == 2 and f"Definition {laws.EVERY} := (@{rules[0].name}, @{rules[2].name})." in files[1]
    axioms = rocq_audit.Assumptions((), tuple(LISTED.allowed))
    assumed = {f"Laws_mask.{laws.EVERY}": axioms}
    assert rocq_audit.law_complaints([found], NO_EXCEPTIONS, assumed) == [
        f"the law {bad} is not proved in Rocq: Error: Timeout!"
    ]


def test_an_axiom_under_a_law_is_complained_of():
    found = laws.CheckedLaws("Laws_mask", {law.name: laws.claimed(law) for law in mask.NORMAL})
    name = f"Laws_mask.{laws.EVERY}"
    good = {name: rocq_audit.Assumptions((), tuple(LISTED.allowed))}
    bad = {name: rocq_audit.Assumptions((), ("Onepass.Tactics.cheat",))}
    assert rocq_audit.law_complaints([found], NO_EXCEPTIONS, good) == []
    assert len(rocq_audit.law_complaints([found], NO_EXCEPTIONS, bad)) == 1
    assert len(rocq_audit.law_complaints([found], NO_EXCEPTIONS, {})) == 1
    law = mask.NORMAL[0].name
    for name, complaint in ((law, "is proved"), ("no_law", "is no law")):
        listed = replace(LISTED, unchecked={name: "a reason"})
        wrong = rocq_audit.law_complaints([found], listed, good)
        assert len(wrong) == 1 and wrong[0].endswith(complaint)


def test_all_laws_are_checked_but_those_with_a_reason():
    rows = {f"derivative_of_{op}" for op in derivatives.operations()}
    assert LISTED.unchecked.keys() <= {law.name for law in ALL} | rows and all(LISTED.unchecked.values())


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("coqc"), reason="Rocq is not installed")
def test_the_tactic_proves_no_false_law(tmp_path, monkeypatch):
    monkeypatch.setattr(compiler, "BUILD", tmp_path / "theory")
    compiler.compile_theory()
    tried = laws.attempts(FALSE, "False_laws")
    assert len(tried) > len(FALSE) - 8 and not any(tried.values())

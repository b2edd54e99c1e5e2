"""The theory in Rocq as far as Python can see it: its list of assumptions, its README, and the audit's own teeth.

Nothing here runs Rocq; `make theory` does.
"""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from onepass.proofs import rocq_audit
from onepass.proofs.rocq_audit import Assumptions

ROOT = Path(__file__).resolve().parents[2]
LISTED = rocq_audit.committed()
REALS = ("ClassicalDedekindReals", "Classical_Prop", "FunctionalExtensionality")
TABLE_ROW = re.compile(r"^\| (`\w+\.\w+`.*?) \| (.*) \|$", re.MULTILINE)


def as_rocq_answers(name: str, assumed: Assumptions) -> str:
    """Rocq's three answers about a theorem, in the words of version 8.16."""
    arguments = " ".join(["A%type_scope", "op%function_scope", *(f"({word})%scope" for word in assumed.hypotheses)])
    listed = "".join(f"{axiom}\n  : forall P : Prop, P\n" for axiom in assumed.axioms)
    return (
        f"Constant Onepass.{name}\n{name} :\nforall A : Type, A = A\n\n{name} is not universe polymorphic\n"
        f"Arguments {name} {arguments}\n  l%list_scope\n{name} is opaque\nExpands to: Constant Onepass.{name}\n"
        + (f"Axioms:\n{listed}" if listed else rocq_audit.CLOSED + "\n")
    )


def found_as_listed() -> dict[str, Assumptions]:
    axioms = tuple(sorted(LISTED.allowed))
    return {
        name: Assumptions(hypotheses, () if name in LISTED.closed else axioms)
        for name, hypotheses in LISTED.hypotheses.items()
    }


def test_every_theorem_is_listed_and_every_listed_one_is_a_theorem():
    assert rocq_audit.theorems() and sorted(rocq_audit.theorems()) == sorted(LISTED.hypotheses)


def test_every_file_is_compiled():
    assert sorted(rocq_audit.modules()) == sorted(path.stem for path in rocq_audit.THEORY.glob("*.v"))


def test_files_require_only_files_before_them():
    for place, module in enumerate(rocq_audit.modules()):
        required = re.findall(r"From Onepass Require Import ([\w ]+)\.", rocq_audit.source(module))
        assert set(" ".join(required).split()) <= set(rocq_audit.modules()[:place])


def test_only_axioms_of_the_reals_are_allowed():
    assert {axiom.partition(".")[0] for axiom in LISTED.allowed} == set(REALS)


def test_theorems_about_monoids_are_closed():
    modules = {"Monoid", "Homomorphism", "Tupling", "Cascade", "Positions"}
    assert {name.partition(".")[0] for name in LISTED.closed} == modules
    for module in modules:
        assert "Reals" not in rocq_audit.source(module)


def test_every_hypothesis_is_declared_and_used():
    assert {word for words in LISTED.hypotheses.values() for word in words} == rocq_audit.hypothesis_names()


def test_readme_states_every_theorem_with_its_hypotheses():
    stated = {}
    for names, rest in TABLE_ROW.findall((rocq_audit.THEORY / "README.md").read_text()):
        columns = rest.split(" | ")
        hypotheses = tuple(re.findall(r"`(\w+)`", columns[1])) if len(columns) == 3 else ()
        stated |= dict.fromkeys(re.findall(r"`(\w+\.\w+)`", names), hypotheses)
    assert stated == LISTED.hypotheses


def test_answers_are_read_back():
    found = found_as_listed()
    text = "".join(as_rocq_answers(*item) for item in found.items())
    assert rocq_audit.answered(text, rocq_audit.hypothesis_names()) == found
    assert rocq_audit.complaints(found, LISTED) == []


@pytest.mark.parametrize("name", ["Monoid.tile", "Softmax.streaming_attention"])
def test_a_change_is_complained_of(name):
    found = found_as_listed()
    hypotheses, axioms = found[name]
    changes = [
        {name: Assumptions(hypotheses, (*axioms, "Onepass.Monoid.admitted"))},
        {name: Assumptions((*hypotheses, "op_comm"), axioms)},
        {"Monoid.new": Assumptions((), ())},
    ]
    for change in changes:
        assert len(rocq_audit.complaints(found | change, LISTED)) == 1
    del found[name]
    assert rocq_audit.complaints(found, LISTED) == [f"{name} is listed and not proved"]


def test_a_closed_theorem_may_not_use_the_reals():
    found = found_as_listed() | {"Monoid.absent": Assumptions(("op_unit_left",), tuple(LISTED.allowed)[:1])}
    assert len(rocq_audit.complaints(found, LISTED)) == 1
    assert rocq_audit.complaints(found, replace(LISTED, closed=LISTED.closed - {"Monoid.absent"})) == []


def test_an_answer_that_is_not_understood_is_no_success():
    with pytest.raises(rocq_audit.TheoryError, match="not understood"):
        rocq_audit.answered("Constant Onepass.Monoid.tile\nExpands to: x\nSomething new\n", set())


def test_checks_run_it():
    assert re.search(r"^for target in .*\btheory\b.*; do$", (ROOT / ".ci/run").read_text(), re.MULTILINE)


def test_the_provers_discharge_the_hypotheses_of_the_theory():
    """provers/theorems.py maps names such as "Cascade.cascade_stream" to the hypotheses that are discharged, by
    name.
    """
    theorems = pytest.importorskip("onepass.proofs.provers.theorems").THEOREMS
    assert theorems and {name: set(theorems[name]) for name in theorems} == {
        name: set(LISTED.hypotheses.get(name, ("no such theorem",))) for name in theorems
    }

"""Every shipped law, by its record alone: it is typed, holds, fires, and a mutant of it is refuted."""

import ast
from collections import Counter
from functools import cache
from pathlib import Path

import pytest
from hypothesis import Phase, find, settings

from onepass import rules
from onepass.egraph.derivation.certificate import FORWARD, Derivation, DerivationStep, binding_text, check
from onepass.egraph.derivation.derive import derive
from onepass.egraph.rewrite.match import rewrite
from onepass.egraph.rewrite.rule import ASSUMPTIONS
from onepass.testing import Refuted, assert_rule, mutants
from onepass.testing.strategies import instances

every_rule = pytest.mark.parametrize("law", rules.ALL, ids=lambda law: law.name)


@cache
def an_instance(law):
    """Some instance whose two sides are different terms."""
    quick = settings(database=None, max_examples=200, phases=[Phase.generate])
    return find(instances(law), lambda instance: instance.left is not instance.right, settings=quick)


@pytest.mark.sampled(40)
@every_rule
def test_is_typed(law):
    instance = an_instance(law)
    weak = "float" in (instance.left.dtype, instance.right.dtype)
    assert weak or instance.left.dtype == instance.right.dtype
    assert instance.right.dims <= instance.left.dims


@pytest.mark.sampled(15)
@every_rule
def test_holds(law):
    assert_rule(law)


@every_rule
def test_fires(law):
    instance = an_instance(law)
    assert rewrite(law, instance.left, instance.binding) is instance.right
    derivation = derive(instance.left, instance.right, (law,))
    if law.chosen:
        assert derivation is None
        shown = binding_text(instance.binding)
        step = DerivationStep(law.name, FORWARD, (), shown, instance.left, instance.right)
        derivation = Derivation(instance.left, instance.right, (step,))
    check(derivation, (law,))
    assert [step.rule for step in derivation.steps] == [law.name]


@pytest.mark.sampled(31)
@every_rule
def test_a_mutant_is_refuted(law):
    def refuted(mutant) -> bool:
        try:
            assert_rule(mutant, examples=100, shrink=False)
        except Refuted as found:
            return "never fired" not in str(found)
        return False

    assert any(refuted(mutant) for mutant in mutants(law)), f"no mutant of {law.name} is refuted"


def test_names_are_unique():
    assert [name for name, count in Counter(law.name for law in rules.ALL).items() if count > 1] == []


def test_every_law_in_the_folder_is_shipped():
    written = set()
    for path in Path(rules.__file__).parent.glob("*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef) and any("rule" in ast.unparse(d) for d in node.decorator_list):
                written.add(node.name)
    assert written == {law.name for law in rules.ALL}


def test_no_assumption_is_known_that_no_law_makes():
    assert {law.assumption for law in rules.ALL} - {None} == set(ASSUMPTIONS)

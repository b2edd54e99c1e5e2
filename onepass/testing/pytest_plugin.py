"""A pytest plugin: `@pytest.mark.onepass_rules(RULES)` runs a test once for each rule, as the fixture `onepass_rule`.

An installed onepass registers it by entry point; otherwise write `pytest_plugins = "onepass.testing_pytest"` in
conftest.py. Example of a test's body: `onepass.testing.assert_rule(onepass_rule)`.
"""

from __future__ import annotations

import pytest

MARK = "onepass_rules"


def pytest_configure(config: pytest.Config) -> None:
    """Registers the mark."""
    config.addinivalue_line("markers", f"{MARK}(rules): run the test for each rule, as the fixture onepass_rule")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Makes a test of each rule in the mark. Raises UsageError for a mark that is not a list of rules."""
    if "onepass_rule" not in metafunc.fixturenames:
        return
    from ..egraph.rewrite.pattern_rule import PatternRule
    from ..egraph.rewrite.rule import Rule

    mark = metafunc.definition.get_closest_marker(MARK)
    rules = mark.args[0] if mark is not None and len(mark.args) == 1 else None
    if (
        not isinstance(rules, list | tuple)
        or not rules
        or not all(isinstance(rule, Rule | PatternRule) for rule in rules)
    ):
        where = f"{metafunc.definition.nodeid} asks for onepass_rule"
        raise pytest.UsageError(f"{where}: mark it with @pytest.mark.{MARK}([a_rule, ...]), a list of rules, not empty")
    metafunc.parametrize("onepass_rule", rules, ids=[rule.name for rule in rules])

"""The matcher that runs does what the meaning of patterns says: the same matches, in order, as many times."""

from collections import Counter

import pytest
from hypothesis import assume, given, settings

from onepass.egraph.rewrite.match import holds, instantiate, match
from onepass.egraph.rewrite.pattern import CONSTRUCTS
from onepass.egraph.rewrite.pattern_expansion import readings
from onepass.egraph.rewrite.pattern_matcher import matches
from onepass.egraph.rewrite.pattern_semantics import all_matches, free_variables, matched_by
from onepass.egraph.terms.traversal import subterms
from tests.support.pattern_strategies import patterns, small_terms


@pytest.mark.slow
def test_the_matcher_gives_what_the_meaning_says():
    seen: Counter = Counter()

    @settings(max_examples=400, deadline=None, database=None, derandomize=True)  # so that what is seen stays
    @given(patterns(), small_terms)
    def compare(pattern, target):
        found = list(matches(pattern, target))
        assert found == all_matches(pattern, target)
        assert all(matched_by(pattern, target, binding) for binding in found)
        seen.update({node.op for node in subterms(pattern)} if found else ())
        seen["several"] += len(found) > 1

    compare()
    assert all(seen[op] >= 1 for op in (*CONSTRUCTS, "several")), seen


def by_readings(pattern, target, most):
    """Matches of a pattern's readings, as bindings of the pattern's own variables; None if there are too many."""
    found = []
    for number, reading in enumerate(readings(pattern)):
        if number == most:
            return None
        binding = match(reading.left, target)
        if binding is not None and all(holds(guard, binding) for guard in reading.guards):
            full = {**binding, **{name: instantiate(value, binding) for name, value in reading.known.items()}}
            found.append({name: value for name, value in full.items() if name in free_variables(pattern)})
    return found


@pytest.mark.slow
def test_the_readings_match_what_the_pattern_matches():
    compared = [0]

    @settings(max_examples=300, deadline=None, database=None)
    @given(patterns(), small_terms)
    def compare(pattern, target):
        found = by_readings(pattern, target, 300)
        assume(found is not None)
        compared[0] += bool(found)
        assert Counter(map(_frozen, found)) == Counter(map(_frozen, matches(pattern, target)))

    compare()
    assert compared[0] >= 20


def _frozen(binding):
    return frozenset(binding.items())

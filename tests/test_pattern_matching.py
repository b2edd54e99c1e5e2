"""The matcher that runs does what the meaning of patterns says: the same matches, in order, as many times."""

from collections import Counter

from hypothesis import given, settings

from onepass.egraph.pattern import CONSTRUCTS
from onepass.egraph.pattern_match import matches
from onepass.egraph.pattern_meaning import all_matches, matched_by
from onepass.egraph.term import subterms
from tests.pattern_strategies import patterns, small_terms


def test_the_matcher_gives_what_the_meaning_says():
    seen: Counter = Counter()

    @settings(max_examples=400, deadline=None, database=None)
    @given(patterns(), small_terms)
    def compare(pattern, target):
        found = list(matches(pattern, target))
        assert found == all_matches(pattern, target)
        assert all(matched_by(pattern, target, binding) for binding in found)
        seen.update({node.op for node in subterms(pattern)} if found else ())
        seen["several"] += len(found) > 1

    compare()
    assert all(seen[op] >= 5 for op in (*CONSTRUCTS, "several")), seen

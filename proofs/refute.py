"""Searches for a counterexample of a rule: evaluates both sides on hostile random instances in float64.

Drawn are usual numbers, the rule's constants, numbers near them and near the edges of its functions, and sizes near its
constants. Finding none proves nothing. The search is deterministic, because the seed of the generator is fixed.
Example: for x / x = 1 it finds x = 0.
"""

from __future__ import annotations

from random import Random
from time import thread_time

from ..egraph.rewrite.rule import Rule
from ..egraph.sampling.compare_sides import Disagreement, difference
from ..egraph.sampling.samples import random_instance
from ..egraph.terms.term import Dim
from .verdict import Counterexample

DRAWS = 400
DRAWS_OF_A_LOOK = 8  # between two looks at the clock
MAX_COUNTEREXAMPLES = 8  # that are found before the smallest is chosen


def counterexample(rule: Rule, budget: float = 1.0, draws: int = DRAWS) -> Counterexample | None:
    """The smallest of the first few counterexamples found within the budget in seconds, or None."""
    return search(rule, budget, draws)[0]


def search(rule: Rule, budget: float, draws: int = DRAWS) -> tuple[Counterexample | None, int]:
    """A counterexample, or None, and the number of instances that satisfied the guards."""
    generator, end = Random(0), thread_time() + budget
    found: list[Disagreement] = []
    met = 0
    for draw in range(draws):
        late = draw % DRAWS_OF_A_LOOK == 0 and thread_time() > end
        if late or len(found) == MAX_COUNTEREXAMPLES:
            break
        instance = random_instance(rule, generator)
        wrong = difference(instance) if instance is not None else None
        met += instance is not None
        found += [wrong] if wrong else []
    return (counterexample_at(min(found, key=_size)) if found else None), met


def _size(wrong: Disagreement) -> tuple[bool, int]:
    """Smaller is easier to read: first without dims that the rule does not name, then by length of the text."""
    return bool(wrong.instance.further), len(str(wrong))


def counterexample_at(wrong: Disagreement) -> Counterexample:
    """The counterexample that a disagreement of both sides is."""
    instance = wrong.instance
    shapes = {n.removeprefix("dim "): int(d.size) for n, d in instance.binding.items() if isinstance(d, Dim)}
    values: dict[str, object] = {name: array.tolist() for name, array in instance.arrays.items()}
    for name, value in instance.binding.items():
        if not isinstance(value, Dim) and name not in values:
            values[name] = str(value)
    left, right = (None if side is None else side.tolist() for side in (wrong.left, wrong.right))
    return Counterexample(shapes, values, left, right, str(wrong))

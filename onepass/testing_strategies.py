"""Hypothesis strategies: concrete, hostile instances of a rule, and hostile tensors for functions.

A variable may depend on every dim that the guards do not forbid, whatever its annotation says: that is what the matcher
would accept. Needs hypothesis, so onepass/testing.py imports it late; tests and users may use it directly.
"""

from __future__ import annotations

from math import inf

import numpy as np
from hypothesis import assume
from hypothesis import strategies as st

from .egraph.instances import ABSENT, LONGEST, PLAIN, PROFILES, Instance, drawn_instance
from .egraph.pattern_rule import PatternRule
from .egraph.rule import Rule


@st.composite
def instances(draw, rule: Rule | PatternRule) -> Instance:
    """Instances of the rule's left side for which every guard holds; the right side may turn out to mean nothing."""
    found = drawn_instance(
        rule, lambda options: draw(st.sampled_from(options)), lambda *asked: draw(hostile_arrays(*asked))
    )
    assume(found is not None)
    return found


@st.composite
def hostile_arrays(draw, shape: tuple[int, ...], finite: bool = False) -> np.ndarray:
    """A float64 array of one profile: a short list of values, repeated, so that values and shapes shrink apart."""
    profile = draw(st.sampled_from(["plain", "plain", "plain", *PROFILES, "constant", *([] if finite else [ABSENT])]))
    palette, size = PROFILES.get(profile, PLAIN), int(np.prod(shape))
    longest = 1 if profile == "constant" else max(1, min(size, LONGEST))
    few, many = (st.lists(st.sampled_from(palette), min_size=n, max_size=longest) for n in (1, min(longest, 3)))
    pool = draw(st.one_of(few, many, many, many))  # few is where shrinking goes
    values = np.resize(np.array(pool, dtype=float), size)
    if size > LONGEST:  # repetition would leave large arrays with equal rows
        values = np.random.default_rng(draw(st.integers(0, 2**16))).permutation(values)
    if profile == ABSENT and size:
        values[draw(st.integers(0, size - 1))] = -inf
    return values.reshape(shape)


@st.composite
def named_shapes(draw, names: tuple[str, ...], largest: int = 4) -> tuple[tuple[int, ...], ...]:
    """Shapes for texts such as "i d" and "j d": one size for each letter, digits as they are."""
    words = sorted({w for text in names for w in text.split() if not w.isdigit()})
    sizes = {w: draw(st.integers(1, largest)) for w in words}
    return tuple(tuple(int(w) if w.isdigit() else sizes[w] for w in text.split()) for text in names)

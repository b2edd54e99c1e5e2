"""Hypothesis strategies: concrete, hostile instances of a rule, and hostile tensors for functions.

A variable may depend on every dim that the guards do not forbid, as for the matcher. A `chooser` makes every choice, so
that a seed fixes all draws. Example: `hostile_arrays((2, 3))` draws an array with -∞, large numbers or ties. Needs
hypothesis.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import count
from math import inf, nan, prod
from random import Random
from typing import Any

import numpy as np
from hypothesis import assume
from hypothesis import strategies as st

from ..egraph.rewrite.pattern_rule import PatternRule
from ..egraph.rewrite.rule import Rule
from ..egraph.sampling.function_edges import RANGES, around
from ..egraph.sampling.samples import (
    ABSENT,
    MAX_DRAWN_VALUES,
    PLAIN,
    PROFILES,
    Instance,
    drawn_instance,
    kinds_of,
    profiles_of,
)

Profiles = Mapping[str, tuple[float, ...]]  # the values from which the elements of a tensor are drawn, by name
CONSTANT = "constant"  # one plain number for all elements
ABSENT_ROWS, NOT_A_NUMBER, INFINITE = "absent rows", "one NaN", "one infinite"
NOT_FINITE = {ABSENT: -inf, ABSENT_ROWS: -inf, NOT_A_NUMBER: nan, INFINITE: inf}
SWEPT = 3  # instances of each kind
HEADROOM = 64  # drawn numbers are smaller than the largest number by this factor, so that short sums do not overflow
BEYOND_CONSTANTS = 2**70


def chooser(draw: Callable) -> Callable:
    """A function that draws one of some options. A counterexample shrinks to the first option.

    Hypothesis also draws numbers that it finds in the source of loaded modules, so that a seed alone would not fix the
    draws. It finds no number as large as those that are drawn here.
    """

    def choose(options: Sequence) -> Any:
        return options[draw(st.integers(BEYOND_CONSTANTS, BEYOND_CONSTANTS + len(options) - 1)) - BEYOND_CONSTANTS]

    return choose


@st.composite
def instances(draw: st.DrawFn, rule: Rule | PatternRule) -> Instance:
    """Instances of the rule for which every guard holds. The right side may be a TermError.

    >>> import onepass
    >>> from hypothesis import given
    >>> @onepass.rule
    ... def doubled(x):
    ...     "x + x = 2 · x"
    ...     return x + x, 2.0 * x
    >>> @given(onepass.testing.instances(doubled))
    ... def test(instance):
    ...     left, right = instance.sides
    ...     assert left.dtype == right.dtype
    >>> test()
    """
    choose, profiles = chooser(draw), profiles_of(rule)
    array = lambda shape, finite: drawn_array(
        choose, shape, profiles, kinds_of(profiles, (CONSTANT,) if finite else (CONSTANT, ABSENT))
    )
    found = drawn_instance(rule, choose, array)
    assume(found is not None)
    return found


@st.composite
def hostile_arrays(
    draw: st.DrawFn, shape: tuple[int, ...], finite: bool = False, profiles: Profiles | None = None
) -> np.ndarray:
    """Arrays of float64: small numbers, hostile numbers of the whole range, and -∞, ∞ and NaN unless `finite`.

    >>> from hypothesis import given
    >>> from onepass.testing import hostile_arrays
    >>> @given(hostile_arrays((2, 3)))
    ... def test(x):
    ...     assert x.shape == (2, 3)  # some are NaN, some -∞, some 1e300
    >>> test()
    """
    given = wide_profiles() if profiles is None else profiles
    return drawn_array(chooser(draw), shape, given, kinds_of(given, (CONSTANT,) if finite else (CONSTANT, *NOT_FINITE)))


def swept_instances(rule: Rule | PatternRule, seed: int) -> Iterator[Instance]:
    """Instances in which all arrays, or one of them, are of one kind, kind by kind. The last kind is -∞ alone."""
    generator, profiles = Random(seed), profiles_of(rule)

    def drawn(kind: str, only: int | None) -> Instance | None:
        numbers = count()

        def array(shape: tuple[int, ...], finite: bool) -> np.ndarray:
            is_plain = only not in (None, next(numbers)) or (finite and kind in NOT_FINITE)
            if kind == ABSENT_ROWS and not is_plain:
                return np.full(shape, -inf)
            return drawn_array(generator.choice, shape, profiles, ("plain" if is_plain else kind,))

        return drawn_instance(rule, generator.choice, array)

    for kind in (*profiles, CONSTANT, ABSENT, ABSENT_ROWS):
        together = [one for one in (drawn(kind, None) for _ in range(SWEPT)) if one is not None]
        most = max((len(one.arrays) for one in together), default=0)
        apart = (drawn(kind, only) for only in range(most) for _ in range(SWEPT))
        yield from (*together, *(one for one in apart if one is not None))


@st.composite
def named_shapes(
    draw: st.DrawFn,
    names: tuple[str, ...],
    largest: int = 4,
    smallest: int = 1,
    sizes: Mapping[str, Sequence[int]] | None = None,
) -> tuple[tuple[int, ...], ...]:
    """Shapes for texts of dims such as "i d" and "j 3": one size for each letter, digits unchanged.

    sizes: of which those of a letter are drawn, for letters whose sizes are not from smallest to largest.

    >>> from hypothesis import given
    >>> from onepass.testing import named_shapes
    >>> @given(named_shapes(("i d", "j d")))
    ... def test(shapes):
    ...     (_, d), (_, same) = shapes
    ...     assert d == same
    >>> test()
    """
    words = sorted({w for text in names for w in text.split() if not w.isdigit()})
    choose, options = chooser(draw), (*range(1, largest + 1), *range(smallest, 1))
    drawn = {w: choose(tuple((sizes or {}).get(w, options))) for w in words}
    return tuple(tuple(int(w) if w.isdigit() else drawn[w] for w in text.split()) for text in names)


def drawn_array(choose: Callable, shape: tuple[int, ...], profiles: Profiles, kinds: Sequence[str]) -> np.ndarray:
    """An array of one kind: a short list of values, repeated, so that values and shapes shrink independently."""
    size, kind, plain = prod(shape), choose(kinds), profiles.get("plain", PLAIN)
    values = _repeated(choose, profiles.get(kind, plain), size, 1 if kind == CONSTANT else MAX_DRAWN_VALUES)
    if kind not in PROFILES and kind in profiles and size > 1 and choose((False, True)):
        values = np.where(_some(choose, size), values, _repeated(choose, plain, size, MAX_DRAWN_VALUES))
    if kind in NOT_FINITE and size:
        some = _some(choose, size) if kind == ABSENT_ROWS else [choose(range(size))]
        values[some] = NOT_FINITE[kind]
    return values.reshape(shape)


def _repeated(choose: Callable, palette: Sequence[float], size: int, longest: int) -> np.ndarray:
    """An array of one value of a palette, of a few values, or of as many as there are elements."""
    most = max(1, min(size, longest))
    pool = np.array([choose(palette) for _ in range(choose((1, min(most, 3), most, most)))], dtype=float)
    if size <= MAX_DRAWN_VALUES:
        return np.resize(pool, size)
    seed = choose(range(2**16))  # with plain repetition, large arrays would have equal rows
    return np.random.default_rng(seed).permutation(np.resize(pool, size))


def _some(choose: Callable, size: int) -> np.ndarray:
    """A random choice of elements, as an array of truth values."""
    return np.resize(np.array([choose((True, False)) for _ in range(min(size, MAX_DRAWN_VALUES))]), size)


@lru_cache(64)
def wide_profiles(
    dtype: str = "float64", edges: Iterable[float] = (), largest: float = inf
) -> dict[str, tuple[float, ...]]:
    """Profiles of the whole range of a dtype and of the neighbours of edges, without numbers beyond `largest`."""
    r = RANGES[dtype]
    most = min(largest, r.largest / HEADROOM)
    steps = [k / 12 for k in range(1, 12)] + [1 / 64, 1 / 32, 1 / 24]
    sizes = [10.0**k for k in range(1, 10)] + [1 / r.epsilon, 2 / r.epsilon] + sorted(r.largest**k for k in steps)
    small = sorted((r.tiny**k for k in steps), reverse=True) + [r.epsilon, r.tiny, r.least, 3 * r.least]
    signed = lambda values: tuple(s for x in values for s in (x, -x))
    offset = 1 / r.epsilon**0.5
    found = {
        **PROFILES,
        "edges": around(edges, dtype),
        "ladder": signed([*sizes, *small]),
        "offset": tuple(offset + x for x in PLAIN),
        "far offset": tuple(64 * offset + 4 * x for x in PLAIN),
    }
    kept = {name: tuple(x for x in values if abs(x) <= most) for name, values in found.items()}
    return {name: values for name, values in kept.items() if values}

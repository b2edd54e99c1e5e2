"""Draws the arguments on which two functions are compared: first every hostile value, then draws of Hypothesis.

The sweep puts one hostile value at a time into the arguments. The draws mix values, sizes and arguments. Both depend
only on the inputs, on the numbers and calls of the functions, and on the seed. Example: functions with `exp` are swept
at 709.78, where float64 overflows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf, log, prod
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

from ..egraph.sampling.samples import kinds_of
from .strategies import CONSTANT, NOT_FINITE, chooser, drawn_array, named_shapes, wide_profiles
from .trace import edges_of_functions

MILD = ("plain", "large", "ties")  # profiles whose values need no sweep, because all draws have them
SWEPT_SIZES = (2, 3)  # of the letters in texts of dims, in turn


@dataclass(frozen=True)
class Values:
    """What may be drawn: finite numbers alone, none larger than `largest`, sizes of 0 too."""

    finite: bool = False
    largest: float = inf
    empty: bool = False


class Draws:
    """Arguments for functions: `sweep` gives a fixed list, `strategy` draws, `near` draws simpler ones than given."""

    def __init__(
        self,
        functions: Sequence[Callable],
        inputs: Any,
        dtype: torch.dtype,
        values: Values,
        sizes: Mapping[str, Sequence[int]],
    ):
        self.given = inputs if isinstance(inputs, st.SearchStrategy) else None
        self.inputs = () if self.given is not None else tuple(inputs)
        self.dtype, self.sizes, self.smallest = dtype, sizes, 0 if values.empty else 1
        self.not_finite = () if values.finite else tuple(NOT_FINITE)
        self.texts = tuple(a for a in self.inputs if isinstance(a, str))
        sample = [self._sized(a) if isinstance(a, str) else a for a in self.inputs]
        edges = edges_of_functions(functions, sample, dtype) if self.inputs else ()
        self.profiles = wide_profiles(str(dtype).removeprefix("torch."), edges, values.largest)

    def _sized(self, text: str) -> str:
        """A text of dims, with the first of the sizes that a letter is given."""
        return " ".join(str(self.sizes[w][0]) if w in self.sizes else w for w in text.split())

    def strategy(self) -> st.SearchStrategy[tuple]:
        """A strategy of argument tuples."""
        if self.given is not None:
            return self.given.map(lambda drawn: drawn if isinstance(drawn, tuple) else (drawn,))

        @st.composite
        def draw_all(draw):
            choose, shapes = chooser(draw), draw(named_shapes(self.texts, smallest=self.smallest, sizes=self.sizes))
            common = choose((None, None, *self.profiles))  # one profile for all arguments, where it is not None
            every = kinds_of(self.profiles, (CONSTANT, *self.not_finite))
            kinds = every if common is None else (common, common, common, "plain")
            return self._filled(shapes, lambda shape, n: drawn_array(choose, shape, self.profiles, kinds))

        return draw_all()

    def sweep(self, most: int) -> Iterator[tuple]:
        """At most `most` argument tuples: plain values, with a profile or a hostile value in one or all arguments."""
        if all(isinstance(a, torch.Tensor) for a in self.inputs):  # nothing is drawn
            return
        letters = dict.fromkeys(w for text in self.texts for w in text.split() if not w.isdigit())
        sizes = {w: self.sizes.get(w, SWEPT_SIZES[n % len(SWEPT_SIZES) :]) for n, w in enumerate(letters)}
        recipes = list(self._recipes())
        count = min(most, len(recipes))
        for number in range(count):
            own = {w: known[number % len(known)] if w in self.sizes else known[0] for w, known in sizes.items()}
            shapes = [tuple(int(w) if w.isdigit() else own[w] for w in text.split()) for text in self.texts]
            yield self._filled(shapes, partial(self._swept, *recipes[number * len(recipes) // count]))

    def _recipes(self) -> Iterator[tuple[Mapping[int, Sequence[float]], bool]]:
        """Which arguments hold which values, and whether in one element only."""
        drawn = [n for n, a in enumerate(self.inputs) if not isinstance(a, torch.Tensor)]
        for palette in self.profiles.values():
            yield from (({n: palette}, False) for n in drawn)
            yield dict.fromkeys(drawn, palette), False
        largest = max(x for palette in self.profiles.values() for x in palette)
        for value in self._hostile_values():
            yield from (({n: [value]}, once) for n in drawn for once in (False, True))
            if len(drawn) > 1:
                inverse = min(largest, 1 / abs(value)) if value else 1.0
                yield from ((dict.fromkeys(drawn, signs), False) for signs in ([value], [value, -value]))
                yield {n: [(value, inverse)[k % 2]] for k, n in enumerate(drawn)}, False

    def _hostile_values(self) -> list[float]:
        """The values of hostile profiles, those nearest to 1 in magnitude first, then those that are not finite."""
        hostile = [x for name, palette in self.profiles.items() if name not in MILD for x in palette]
        hostile.sort(key=lambda x: abs(log(abs(x))) if x else 0.0)
        return list(dict.fromkeys((*hostile, *(NOT_FINITE[kind] for kind in self.not_finite))))

    def _swept(self, palettes: Mapping[int, Sequence[float]], once: bool, shape: tuple[int, ...], n: int) -> np.ndarray:
        """An array of plain values, rotated by the argument's number, or of its palette; once: one value of that."""
        size, plain, palette = prod(shape), self.profiles["plain"], palettes.get(n)
        turn = np.array((plain[1:] or plain) if palette is None or once else palette, dtype=float)
        values = turn[(np.arange(size) + n) % len(turn)]
        if once and palette is not None and size:
            values[n % size] = palette[0]
        return values.reshape(shape)

    def near(self, arguments: tuple) -> st.SearchStrategy[tuple]:
        """A strategy of the values of some swept arguments, at fewer places and in smaller sizes, to shrink them."""
        own = [tuple(dict.fromkeys((0.0, 1.0, *a.double().flatten().tolist()))) for a in arguments]

        @st.composite
        def draw_all(draw):
            choose, shapes = chooser(draw), draw(named_shapes(self.texts, max(SWEPT_SIZES), sizes=self.sizes))
            values = lambda shape, n: np.array([choose(own[n]) for _ in range(prod(shape))])
            return self._filled(shapes, lambda shape, n: values(shape, n).reshape(shape))

        return draw_all()

    def _filled(self, shapes, array: Callable) -> tuple:
        """The arguments. `array` makes a drawn one from its shape and its number."""
        shapes = iter(shapes)
        sizes = [next(shapes) if isinstance(a, str) else a for a in self.inputs]
        tensor = lambda shape, n: torch.as_tensor(array(tuple(shape), n)).to(self.dtype)
        return tuple(a if isinstance(a, torch.Tensor) else tensor(a, n) for n, a in enumerate(sizes))

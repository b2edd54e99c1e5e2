"""The configurations that known constraints allow, exactly: a chain of trees, one for each group of bound parameters.

Parameters that share a constraint are in one tree, whose leaves are its allowed assignments; the space is the product
of the trees, so it is counted, drawn from uniformly and walked without ever making a forbidden point.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import combinations, product
from math import log2, prod
from typing import Any

import numpy as np

from ..egraph.forks import cached_property


@dataclass(frozen=True)
class Parameter:
    """values: numbers (their logarithm is a distance), permutations as tuples, or anything else (no order)."""

    name: str
    values: tuple

    def features(self, value: Any) -> list[float]:
        """Coordinates in [0, 1] whose distances say how alike two values are."""
        if isinstance(value, tuple):  # a permutation: which of each two comes first
            return [float(value.index(a) < value.index(b)) for a, b in combinations(sorted(value), 2)]
        if all(isinstance(v, int | float) and not isinstance(v, bool) and v > 0 for v in self.values):
            low, high = log2(min(self.values)), log2(max(self.values))
            return [(log2(value) - low) / (high - low) if high > low else 0.0]
        if len(self.values) == 2:
            return [float(value == self.values[1])]
        return [float(value == v) for v in self.values]


@dataclass(frozen=True)
class Constraint:
    """`holds` takes the values of `names`, in order."""

    names: tuple[str, ...]
    holds: Callable[..., bool]


class Space:
    """Points are tuples of values in the order of the parameters."""

    def __init__(self, parameters: tuple[Parameter, ...], constraints: tuple[Constraint, ...] = ()):
        self.parameters, self.constraints = parameters, constraints
        self.names = tuple(p.name for p in parameters)
        if unknown := {n for c in constraints for n in c.names} - set(self.names):
            raise ValueError(f"a constraint names {sorted(unknown)[0]!r}, which is no parameter")

    @cached_property
    def trees(self) -> list[tuple[tuple[int, ...], list[tuple]]]:
        """(indices of parameters, allowed assignments of them), the chain."""
        return [(group, list(self._leaves(group))) for group in self._groups()]

    def _groups(self) -> list[tuple[int, ...]]:
        groups = [{k} for k in range(len(self.parameters))]
        for constraint in self.constraints:
            bound = {self.names.index(n) for n in constraint.names}
            touched = [g for g in groups if g & bound]
            groups = [g for g in groups if not g & bound] + [set().union(*touched)]
        return sorted(tuple(sorted(g)) for g in groups)

    def _leaves(self, group: tuple[int, ...], chosen: tuple = ()) -> Iterator[tuple]:
        """Depth first: a branch ends at the first value that a constraint over what is chosen forbids."""
        if len(chosen) == len(group):
            yield chosen
            return
        for value in self.parameters[group[len(chosen)]].values:
            if self._allowed(group, (*chosen, value)):
                yield from self._leaves(group, (*chosen, value))

    def _allowed(self, group: tuple[int, ...], chosen: tuple) -> bool:
        known = dict(zip((self.names[k] for k in group), chosen))
        last = self.names[group[len(chosen) - 1]]
        ready = [c for c in self.constraints if last in c.names and all(n in known for n in c.names)]
        return all(c.holds(*(known[n] for n in c.names)) for c in ready)

    def __len__(self) -> int:
        return prod(len(leaves) for _, leaves in self.trees)

    def __iter__(self) -> Iterator[tuple]:
        for leaves in product(*(leaves for _, leaves in self.trees)):
            yield self._joined(leaves)

    def _joined(self, leaves) -> tuple:
        values = {k: v for (group, _), leaf in zip(self.trees, leaves) for k, v in zip(group, leaf)}
        return tuple(values[k] for k in range(len(self.parameters)))

    def allows(self, point: tuple) -> bool:
        """Whether a point is one of the space's."""
        known = dict(zip(self.names, point))
        return all(v in p.values for p, v in zip(self.parameters, point)) and all(
            c.holds(*(known[n] for n in c.names)) for c in self.constraints
        )

    def draw(self, generator: np.random.Generator) -> tuple:
        """Uniform over all allowed points."""
        return self._joined([leaves[generator.integers(len(leaves))] for _, leaves in self.trees])

    def neighbours(self, point: tuple) -> list[tuple]:
        """Allowed points that differ in one parameter."""
        found = []
        for group, leaves in self.trees:
            here = tuple(point[k] for k in group)
            for leaf in leaves:
                if sum(a != b for a, b in zip(leaf, here)) == 1:
                    moved = dict(zip(group, leaf))
                    found.append(tuple(moved.get(k, v) for k, v in enumerate(point)))
        return found

    def features(self, points: list[tuple]) -> np.ndarray:
        rows = [[x for p, v in zip(self.parameters, point) for x in p.features(v)] for point in points]
        return np.array(rows, dtype=float)

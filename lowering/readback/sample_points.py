"""Which indices of a dim are looked at, and which numbers tensors of whole numbers hold.

All of a short dim, else a few: both ends, and some between them, such that rows and columns of other lengths meet on
the diagonals that masks have. Dims of one size have one set. Example: of 300 indices 0, 1, 2, 131, 132, 298 and 299.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice, product

import numpy as np

from ...egraph.terms.sizes import Size, UnknownSize, resolve, symbols
from ...egraph.terms.term import Dim, Term
from ...egraph.terms.traversal import subterms

SHORT_LENGTH = 4  # a dim with so many indices has all of them
PLAIN_INDICES = 2  # of a dim whose indices are nowhere but in brackets
WEIGHED_INDICES = 4  # of those, where a softmax state, an extremum or a condition reads the dim: more than is kept
MOST_INDICES = 16  # indices of any other dim, where that is not too much work
USUAL_VALUES = (48, 1040)  # of the first symbol; each other one has 16 more than the one before
OTHER_VALUES = (4, 2, 3, 6, 8, 12, 5, 16, 7, 24, 1, 200, 5000)  # of symbols of lengths like 12 // (12 // s)
MOST_VALUES = 2000  # that are tried
MIDDLES = (7 / 16, 10 / 16, 5 / 16, 12 / 16)  # of a dim, by trial: about which its indices are sampled


@dataclass
class Points:
    """The indices of dims.

    sizes: values of symbols. structured: sizes of dims whose indices are compared or computed with. weighed: those of
    softmax states and conditions. whole: those of which all indices count. lengths: of structured dims. offsets:
    numbers that indices are compared with. most: indices of a structured dim. more: indices of dims instead of a
    sample.
    """

    sizes: Mapping[str, int]
    structured: frozenset = frozenset()
    weighed: frozenset = frozenset()
    whole: frozenset = frozenset()
    lengths: tuple[int, ...] = ()
    offsets: tuple[int, ...] = ()
    trial: int = 0
    most: int = MOST_INDICES
    more: dict[Dim, np.ndarray] = field(default_factory=dict)
    found: dict = field(default_factory=dict)

    def __call__(self, dim: Dim) -> np.ndarray:
        if dim in self.more:
            return self.more[dim]
        if dim.size not in self.found:
            self.found[dim.size] = self._indices(dim)
        return self.found[dim.size]

    def length(self, dim: Dim) -> int:
        """How many indices the dim has."""
        return resolve(dim.size, self.sizes)

    def _indices(self, dim: Dim) -> np.ndarray:
        length = self.length(dim)
        if length <= SHORT_LENGTH or dim.size in self.whole:
            return np.arange(length)
        if dim.size not in self.structured:
            count = WEIGHED_INDICES if dim.size in self.weighed else PLAIN_INDICES
            return np.linspace(1, length - 1, count).astype(int)
        middle = lambda n: int(n * MIDDLES[self.trial % len(MIDDLES)])
        found = [0, length - 1, middle(length), middle(length) + 1, 1]
        for other in self.lengths:
            if other != length:
                found += [middle(other), middle(other) + length - other, other - 1, length - other]
        near = [place for c in self.offsets for place in (c, c + 1, -c, -c - 1)]
        found += [middle(length) + place for place in near]
        return np.array(sorted([*dict.fromkeys(k for k in found if 0 <= k < length)][: self.most]))


def nodes_of(terms: Iterable[Term]) -> tuple[Term, ...]:
    """Every subterm of the terms, once."""
    return tuple({node for term in terms for node in subterms(term)})


def structured_sizes(nodes: Iterable[Term]) -> frozenset:
    """The sizes of dims whose indices are elsewhere than alone in brackets."""
    found = (a for node in nodes if node.op != "load" for a in node.args if a.op == "iota")
    return frozenset(a.attrs[0].size for a in found)


def offsets_of(nodes: Iterable[Term]) -> tuple[int, ...]:
    """The whole numbers in conditions and in arithmetic with indices, small ones first: where masks begin and end."""
    found: set[int] = set()
    for node in nodes:
        if any(a.op == "const" for a in node.args) and all(a.dtype == "int64" for a in node.args):
            found |= {abs(a.attrs[0]) for a in node.args if a.op == "const"}
    return tuple(sorted(found - {0, 1}))


def weighed_sizes(nodes: Iterable[Term]) -> frozenset:
    """The sizes of dims of softmax states and of extrema, and of those by which a condition keeps elements.

    Of four elements of a tensor that takes three values two are the same, so a sum over equal ones has two terms.
    """
    found: set = set()
    for node in nodes:
        if node.op == "reduce" and node.attrs[0] not in ("sum", "prod"):
            found.add(node.attrs[1].size)
        elif node.dtype == "bool":
            found |= {d.size for d in node.dims}
    return frozenset(found)


def symbol_values(nodes: Iterable[Term], dims: Iterable[Dim]) -> list[dict[str, int]]:
    """Values of all symbols of sizes, several times; with each of them every dim and every axis has an index.

    Raises UnknownSize where no such values are found: without an index nothing is compared.
    """
    lengths = {d.size for d in dims} | {n for node in nodes if node.op == "load" for n in node.attrs[0].shape}
    sizes = lengths | {node.attrs[0] for node in nodes if node.op == "size"}
    names = sorted(set().union(*map(symbols, sizes)))
    if not names:
        return [{}]
    usual = [{name: first + 16 * k for k, name in enumerate(names)} for first in USUAL_VALUES]
    found = [values for values in usual if not _without_value(sizes, lengths, values)]
    found = found or [*islice(_other_values(sizes, lengths, usual[0]), len(USUAL_VALUES))]
    if not found:
        without = _without_value(sizes, lengths, usual[0])
        raise UnknownSize(f"no values of {', '.join(names)} are found with which each of {without} has an element")
    return found


def _without_value(sizes: Iterable[Size], lengths: Collection[Size], values: Mapping[str, int]) -> list[Size]:
    """The sizes that have no value with these of their symbols, and the lengths that are not positive."""

    def has_value(size: Size) -> bool:
        try:
            return resolve(size, values) > 0 or size not in lengths
        except UnknownSize:
            return False

    return [size for size in sizes if not has_value(size)]


def _other_values(sizes: Collection[Size], lengths: Collection[Size], usual: dict) -> Iterator[dict[str, int]]:
    """The usual values with others for those symbols that are in sizes without a value."""
    names = sorted(set().union(*map(symbols, _without_value(sizes, lengths, usual))))
    tried = (usual | dict(zip(names, other, strict=True)) for other in product(OTHER_VALUES, repeat=len(names)))
    yield from (v for v in islice(tried, MOST_VALUES) if not _without_value(sizes, lengths, v))


def index_ranges(nodes: Iterable[Term], sizes: Mapping[str, int]) -> dict[str, int]:
    """For each tensor of whole numbers, how many values its elements take.

    Those of an axis that they index, else those of a dim whose indices they are compared with.
    """
    indexed: dict[str, int] = {}
    compared: dict[str, int] = {}
    for node in filter(_is_load, nodes):
        for axis, index in zip(node.attrs[0].shape, node.args, strict=True):
            for name in _loaded(index):
                indexed[name] = min(resolve(axis, sizes), indexed.get(name, resolve(axis, sizes)))
    for node in filter(_compares, nodes):
        beside = [1 + resolve(d.size, sizes) for a in node.args for d in _places(a)]
        for name in (*_loaded(node.args[0]), *_loaded(node.args[1])) if beside else ():
            compared[name] = max(*beside, compared.get(name, 0))
    return {**compared, **indexed}


def _compares(node: Term) -> bool:
    return node.op in ("le", "lt", "eq") and node.args[0].dtype == "int64"


def _places(term: Term) -> list[Dim]:
    """The dims whose indices are in a term, but for those by which it reads."""
    return [n.attrs[0] for n in subterms(term, _is_load) if n.op == "iota"]


def _is_load(node: Term) -> bool:
    return node.op == "load"


def _loaded(term: Term) -> list[str]:
    """Names of the tensors that a term loads."""
    return [] if term.op == "iota" else [n.attrs[0].name for n in subterms(term) if n.op == "load"]

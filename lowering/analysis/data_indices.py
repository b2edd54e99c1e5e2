"""Indices that are read from memory, such as the pages of a sequence in a cache, and when they are places of a tensor.

Where a guard drops an element, what its index holds may be anything: only a place of the tensor may become an address.
Example: for keys[table[b, j // 16], j % 16, d] with 40 pages, 0 ≤ table[b, j // 16] and table[b, j // 16] < 40.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache

from ...egraph.terms.affine import affine, bounds, compare
from ...egraph.terms.ops import const, make, maximum, minimum, where
from ...egraph.terms.sizes import Size, term_of
from ...egraph.terms.term import Dim, Term
from ...egraph.terms.traversal import rebuild, subterms
from ..plan.launch_facts import Blocks
from ..plan.queries import nodes, roots
from ..plan.records import Kernel, Loop


@lru_cache(4096)
def place_conditions(load: Term) -> tuple[Term, ...]:
    """Conditions under which each index of a load that is itself read from memory is a place of its axis."""
    axes = zip(load.args, load.attrs[0].shape, strict=True)
    return tuple(condition for index, size in axes for condition in _conditions(index, size))


def _conditions(index: Term, size: Size) -> list[Term]:
    """Conditions under which an index is a place of its axis; none for one that is not read from memory."""
    if not reads_memory(index):
        return []
    low, high = bounds(index)
    found = [] if low is not None and low >= 0 else [compare("le", const(0), index)]
    known = isinstance(size, int) and high is not None and high < size
    return found if known else [*found, compare("lt", index, term_of(size))]


@lru_cache(4096)
def nearest_places(load: Term) -> tuple[tuple[Term, ...], tuple[Term, ...]]:
    """The load's indices, of which those that memory holds as they are become the nearest place of their axis, and the
    conditions on the others. A sum stays one, since addresses are made of its parts. Example: keys[table[b, j // 16]]
    is read at min(max(table[b, j // 16], 0), 39), keys[table[b, j // 16] * 16 + j % 16] only where that is a place.
    """
    indices, conditions = [], []
    for index, size in zip(load.args, load.attrs[0].shape, strict=True):
        found = _conditions(index, size)
        if found and affine(index) == ({index: 1}, 0):
            index, found = _nearest(index, size), []
        indices.append(index)
        conditions += found
    return tuple(indices), tuple(conditions)


def at_nearest_places(term: Term) -> Term:
    """The term with every index that is read from memory moved to the nearest place: it may be evaluated anywhere.

    Example: a map of tiles looks at all parts of a guard, also where one part drops what the others are about.
    """

    def change(node: Term, args: tuple[Term, ...]) -> Term:
        if node.op == "load":
            axes = zip(args, node.attrs[0].shape, strict=True)
            args = tuple(_nearest(index, size) if _conditions(index, size) else index for index, size in axes)
        return node if args == node.args else make(node.op, args, node.attrs)

    return rebuild(term, change)


def _nearest(index: Term, size: Size) -> Term:
    """The place of an axis that is nearest to an index."""
    return minimum(maximum(index, const(0)), term_of(size) - const(1))


def read_where_chosen(term: Term) -> Term:
    """The term, in which an index that memory holds is 0 where a choice by its coordinates takes the other arm.

    Nothing is asked of an entry that nobody reads. Where a choice has none of the coordinates of an entry, as that
    between two numbers in one byte, some element needs the entry anyway. Example: of tables side by side, each
    keys[table[b, j // 16]] is one arm; for j beyond its own table the last entry would be looked up, which may be
    behind a length. Masks are left as they are: their other arm is a number.
    """

    def change(node: Term, args: tuple[Term, ...]) -> Term:
        if node.op == "where" and not reads_memory(args[0]) and all(arm.op != "const" for arm in args[1:]):
            args = (args[0], *(_chosen(arm, args[0], taken) for arm, taken in zip(args[1:], (True, False))))
        return node if args == node.args else make(node.op, args, node.attrs)

    return rebuild(term, change)


def _chosen(arm: Term, condition: Term, taken: bool) -> Term:
    """The arm with 0 for the indices that memory holds, where the condition takes the other one."""

    def at_zero(index: Term) -> Term:
        pair = (index, const(0)) if taken else (const(0), index)
        return where(condition, *pair) if reads_memory(index) and index.dims & condition.dims else index

    def change(node: Term, args: tuple[Term, ...]) -> Term:
        if node.op == "load":
            args = tuple(map(at_zero, args))
        return node if args == node.args else make(node.op, args, node.attrs)

    binds = any(n.op == "reduce" and n.attrs[1] in condition.dims for n in subterms(arm))
    return arm if binds else rebuild(arm, change)


def reads_memory(index: Term) -> bool:
    """Whether the index is made of what a tensor holds."""
    return any(n.op == "load" for n in subterms(index))


def loads_by_data(kernel: Kernel, loop: Loop) -> list[Term]:
    """The loads that move with the loop, and one of whose indices is read from memory."""
    nodes = dict.fromkeys(n for root in roots(kernel) for n in subterms(root))
    return [n for n in nodes if n.op == "load" and loop.dim in n.dims and any(map(reads_memory, n.args))]


def all_place_conditions(kernel: Kernel) -> Iterable[Term]:
    """The conditions that a kernel tests, of each load one of whose indices is read from memory."""
    loads = (n for n in nodes(kernel) if n.op == "load")
    yield from (condition for load in loads for condition in place_conditions(load))


def blocks_of_tiles(kernel: Kernel, tiles: Mapping[Dim, int]) -> Blocks:
    """Pairs of a loop's dim d and a number n, where the kernel has d // n, which is one number in each tile.

    A tile begins at a multiple of its extent, so it lies between two multiples of n if the extent divides n. Example: a
    tile of 16 keys lies in one page of 64.
    """
    found = ((n.args[0].attrs[0], n.args[1].attrs[0]) for n in nodes(kernel) if is_block_number(n))
    return frozenset((str(dim), size) for dim, size in found if dim in tiles and size % tiles[dim] == 0)


def is_block_number(node: Term) -> bool:
    """Whether a term is d // n for a coordinate d and a number n."""
    return node.op == "floordiv" and node.args[0].op == "iota" and node.args[1].op == "const"

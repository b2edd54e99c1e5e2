"""Indices that are read from memory, such as the pages of a sequence in a cache, and when they are places of a tensor.

Where a guard drops an element, what its index holds may be anything: only a place of the tensor may become an address.
Example: for keys[table[b, j // 16], j % 16, d] with 40 pages, 0 ≤ table[b, j // 16] and table[b, j // 16] < 40.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache

from ...egraph.terms.affine import bounds, compare
from ...egraph.terms.ops import const
from ...egraph.terms.sizes import term_of
from ...egraph.terms.term import Dim, Term
from ...egraph.terms.traversal import subterms
from ..plan.launch_facts import Blocks
from ..plan.queries import nodes, roots
from ..plan.records import Kernel, Loop


@lru_cache(4096)
def place_conditions(load: Term) -> tuple[Term, ...]:
    """Conditions under which each index of a load that is itself read from memory is a place of its axis."""
    found: list[Term] = []
    for index, size in zip(load.args, load.attrs[0].shape, strict=True):
        if reads_memory(index):
            low, high = bounds(index)
            found += [] if low is not None and low >= 0 else [compare("le", const(0), index)]
            known = isinstance(size, int) and high is not None and high < size
            found += [] if known else [compare("lt", index, term_of(size))]
    return tuple(found)


def reads_memory(index: Term) -> bool:
    """Whether the index is made of what a tensor holds."""
    return any(n.op == "load" for n in subterms(index))


def loads_by_data(kernel: Kernel, loop: Loop) -> list[Term]:
    """The loads that move with the loop, and one of whose indices is read from memory."""
    nodes = dict.fromkeys(n for root in roots(kernel) for n in subterms(root))
    return [n for n in nodes if n.op == "load" and loop.dim in n.dims and any(map(reads_memory, n.args))]


def guarded_conditions(kernel: Kernel) -> Iterable[Term]:
    """The conditions that the kernel tests, because a guard may drop elements of a loop that has such loads."""
    for loop in (loop for loop in kernel.loops if loop.guard is not None):
        yield from (condition for load in loads_by_data(kernel, loop) for condition in place_conditions(load))


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

"""Guards over data as bits: one bit a score, laid out as the threads of a warpgroup hold the scores of a tile.

Where a guard reads a tensor by row and column, a kernel would load an element for every score, and again at every grid
point that shares them. The words are made by a plan of the guard's own term and kept as block maps are, while the
tensors are the same and unchanged.
"""

from __future__ import annotations

from math import prod

from ...egraph.terms.ops import cast, const, eq, iota, le, logical_and, reduce, where
from ...egraph.terms.term import Dim, Tensor, Term
from ..plan.device import H200
from ..plan.records import Store
from .block_map import Tiling, replaced

WORD = 32  # bits: the scores of one thread in 64 columns


class Words(Tiling):
    """The words of all tiles of a launch: int32 [dims..., tiles of rows, tiles of the loop, words of a tile]."""


def word_store(words: Words) -> Store:
    """The store that finds the words. Register n of a thread's scores, bit n % 32 of its word n // 32, has column
    8 (n // 4) + n % 2 from the thread's first one and row 8 (n // 2 % 2); four neighbouring threads share a row. What
    lies past the end of the loop is 0; past the rows' end the last row is repeated, and nobody stores that.
    """
    record, parts = words.record, words.tile // (2 * WORD)
    word, bit = Dim("word", H200.warpgroup * parts), Dim("bit", WORD)
    thread, part, n = iota(word) // parts, iota(word) % parts, iota(bit)
    row = thread // 32 * 16 + thread % 32 // 4 + n // 2 % 2 * 8
    column = part * (2 * WORD) + n // 4 * 8 + thread % 4 * 2 + n % 2
    places = {iota(d): iota(words.static(d)) for d in record.dims}
    places[iota(record.rows[0])] = words.at(record.rows[0], words.row_tile, row)
    places[iota(record.loop)] = words.at(record.loop, words.tile, column)
    kept = replaced(record.guard, places, dict(words.sizes))
    blocks = words.blocks(record.loop, words.tile)
    if words.length(record.loop) % words.tile:
        beyond = const(words.length(record.loop))
        kept = logical_and(kept, le(iota(blocks) * const(words.tile) + column + 1, beyond))
    found = reduce("sum", bit, where(kept, _power_of_two(n), cast(const(0), "int32")))
    order = (*map(words.static, record.dims), words.blocks(record.rows[0], words.row_tile), blocks, word)
    return Store(found, Tensor("words of tiles", "int32", tuple(d.size for d in order)), order)


def _power_of_two(n: Term) -> Term:
    """2^n as an int32, for n from 0 to 31, which is the sign."""
    factors = [where(eq(n // 2**k % 2, const(1)), const(2**2**k), const(1)) for k in range(5)]
    return prod((cast(f, "int32") for f in factors[1:]), start=cast(factors[0], "int32"))

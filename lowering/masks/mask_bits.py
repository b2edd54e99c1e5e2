"""Packed masks: a guard over data as one bit per score, in the order in which a warpgroup's threads hold the scores.

If a guard reads a tensor by row and column, a kernel would load an element for each score, and again at each grid point
that shares the mask. A plan of the guard's own term makes the words once; they are kept as block maps are, as long as
the tensors are the same and unchanged. Example: a tile of 64 x 64 scores has 32 bits for each of 128 threads.
"""

from __future__ import annotations

from math import prod

from ...egraph.terms.ops import cast, const, eq, iota, le, logical_and, reduce, where
from ...egraph.terms.term import Dim, Tensor, Term
from ..plan.device import H200
from ..plan.records import Store
from .block_map import Tiling, replaced

WORD = 32  # bits of a word: the scores of one thread in 64 columns


class PackedTiling(Tiling):
    """The packed mask of a launch: int32 [dims..., tiles of rows, tiles of the loop, words of a tile]."""


def packed_mask_store(words: PackedTiling) -> Store:
    """The store of the words.

    Score n of a thread is bit n % 32 of its word n // 32. From the thread's first score, it is at column 8 (n // 4) + n
    % 2 and at row 8 (n // 2 % 2); four neighbouring threads share a row. Bits past the end of the loop are 0. Past the
    end of the rows, the last row is repeated; nothing stores results for these rows.
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
    """2^n as an int32 for n from 0 to 31; bit 31 is the sign."""
    factors = [where(eq(n // 2**k % 2, const(1)), const(2**2**k), const(1)) for k in range(5)]
    return prod((cast(f, "int32") for f in factors[1:]), start=cast(factors[0], "int32"))

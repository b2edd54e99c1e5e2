"""Random numbers as a function of a seed and a place: Philox4x32-10, a counter that ten rounds of products scramble.

The functions use operators alone, so they take Python numbers, numpy arrays and torch tensors of int64 alike, and give
the same bits. A place is a matrix, a row and a column. Four places share a counter, which gives four numbers: those
that differ in bit 3 of the row or of the column. A thread of a GPU holds all four of a product of matrices, and of its
transpose. Example: `random_bits(seed, offset, 0, 1, 2)` takes the first number of a counter, and row 9 the third.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

Words = tuple[Any, Any, Any, Any]  # each below 2^32: numbers, arrays or tensors of int64

ROUNDS = 10
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
WORD = 0xFFFFFFFF
BLOCK_SIZE = 16  # rows, and columns, of which those that are HALF apart share counters
HALF = 8
BITS = 24  # of a uniform number: so many a float32 holds exactly
UNIT = 2.0**-BITS


def philox(counter: Words, key: tuple[Any, Any]) -> Words:
    """The four words that a counter of four words becomes under a key of two."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(ROUNDS):
        one, two = c0 * MULTIPLIERS[0], c2 * MULTIPLIERS[1]  # int64 wraps, and the words are right all the same
        c0, c1, c2, c3 = _high(two) ^ c1 ^ k0, two & WORD, _high(one) ^ c3 ^ k1, one & WORD
        k0, k1 = (k0 + KEY_STEPS[0]) & WORD, (k1 + KEY_STEPS[1]) & WORD
    return c0, c1, c2, c3


def _high(product: Any) -> Any:
    return (product >> 32) & WORD


def halved(place: Any) -> Any:
    """A row or a column without its bit 3, which its counter lacks: 0 to 7 are those of 0 to 7 and of 8 to 15."""
    return ((place >> 4) << 3) | (place & (HALF - 1))


def bits_of_block(seed: Any, offset: Any, matrix: Any, row: Any, column: Any) -> Words:
    """Whole numbers below 2^24 for the four places of a counter: one row and the other, and in each both columns."""
    words = philox((column & WORD, row & WORD, matrix & WORD, offset & WORD), (seed & WORD, _high(seed)))
    first, second, third, fourth = (word >> (32 - BITS) for word in words)
    return first, second, third, fourth


def random_bits(seed: Any, offset: Any, matrix: Any, row: Any, column: Any) -> Any:
    """A whole number below 2^24, each as likely, for a place. The seed counts modulo 2^64, the others modulo 2^32."""
    bits = bits_of_block(seed, offset, matrix, halved(row), halved(column))
    number = ((row & HALF) >> 2) | ((column & HALF) >> 3)
    return sum((number == k) * one for k, one in enumerate(bits))


def uniform(seed: Any, offset: Any, matrix: Any, row: Any, column: Any) -> Any:
    """A multiple of 2^-24 from 0 to below 1, each as likely."""
    return random_bits(seed, offset, matrix, row, column) * UNIT


def spread_out(block: Sequence[Any], rows: int, columns: int, stack: Callable[[list, int], Any]) -> Any:
    """Numbers of whole blocks at their places: what `bits_of_block` gives for halves of rows and of columns.

    All have one shape; `rows` and `columns` are its axes, which become twice as long. stack: numpy's or torch's.
    """
    shape = [*block[0].shape]
    parts = [(n // HALF, HALF) if axis in (rows, columns) else (n,) for axis, n in enumerate(shape)]
    split = [n for part in parts for n in part]
    inner = [sum(map(len, parts[:axis])) + 1 for axis in (rows, columns)]
    first, second, third, fourth = (one.reshape(split) for one in block)
    both = [stack([first, second], inner[1]), stack([third, fourth], inner[1])]
    whole = stack(both, inner[0] + (inner[1] < inner[0]))
    return whole.reshape([2 * n if axis in (rows, columns) else n for axis, n in enumerate(shape)])

"""Random numbers as a function of a seed and a place: Philox4x32-10, a counter that ten rounds of products scramble.

The functions use operators alone, so they take Python numbers, numpy arrays and torch tensors of int64 alike, and give
the same bits. Example: `random_bits(seed, offset, row, column)` depends on nothing but its four numbers, so it is the
same in each tile, in each executor, and in the forward and the backward.
"""

from __future__ import annotations

from typing import Any

Words = tuple[Any, Any, Any, Any]  # each below 2^32: numbers, arrays or tensors of int64

ROUNDS = 10
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
WORD = 0xFFFFFFFF
NUMBERS_OF_A_COUNTER = 4  # numbers that one counter gives: neighbours in a row share it
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


def words_at(seed: Any, offset: Any, row: Any, group: Any) -> Words:
    """The words for the columns 4 · group to 4 · group + 3 of a row."""
    return philox((group & WORD, row & WORD, offset & WORD, _high(offset)), (seed & WORD, _high(seed)))


def random_bits(seed: Any, offset: Any, row: Any, column: Any) -> Any:
    """A whole number below 2^24, each as likely, for a place. Its arguments count modulo 2^64, 2^64, 2^32 and 2^34."""
    words, lane = words_at(seed, offset, row, column >> 2), column & (NUMBERS_OF_A_COUNTER - 1)
    chosen = sum((lane == k) * word for k, word in enumerate(words))
    return chosen >> (32 - BITS)


def uniform(seed: Any, offset: Any, row: Any, column: Any) -> Any:
    """A multiple of 2^-24 from 0 to below 1, each as likely."""
    return random_bits(seed, offset, row, column) * UNIT

"""The generator against known answers, and the same bits of numbers, of arrays and of tensors."""

import numpy as np
import pytest
import torch

from onepass.egraph.terms import philox
from onepass.egraph.terms.evaluate import evaluate
from onepass.egraph.terms.ops import const, eq, iota, load, make, uniform
from onepass.egraph.terms.term import Dim, Tensor, TermError

ALL_ONES = 0xFFFFFFFF
ANSWERS = [  # of the authors' Random123: counter, key, words
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((ALL_ONES,) * 4, (ALL_ONES,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]
KINDS = {"numbers": int, "arrays": lambda x: np.array([x]), "tensors": lambda x: torch.tensor([x])}
ROW, COLUMN = Dim("i", 5), Dim("j", 17)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("counter, key, words", ANSWERS)
def test_the_known_answers(counter, key, words, kind):
    made = KINDS[kind]
    found = philox.philox(tuple(map(made, counter)), tuple(map(made, key)))
    assert tuple(int(word if isinstance(word, int) else word.item()) for word in found) == words


def test_a_number_depends_on_each_of_its_arguments():
    place = (5, 6, 7, 8, 9)
    changes = [(k, shift) for k in range(5) for shift in (0, 1, 4, 20, 31)]
    others = [tuple(x ^ (1 << shift) if n == k else x for n, x in enumerate(place)) for k, shift in changes]
    bits = [philox.random_bits(*one) for one in (place, *others, (5 + (1 << 40), *place[1:]))]
    assert len({*bits}) == len(bits) and all(0 <= x < 1 << philox.BITS for x in bits)


def test_four_places_of_a_block_take_the_words_of_one_counter():
    for row, column in ((0, 0), (7, 3), (18, 35)):
        bits = philox.bits_of_block(11, 12, 13, philox.halved(row), philox.halved(column))
        places = [(row, column), (row, column + 8), (row + 8, column), (row + 8, column + 8)]
        assert tuple(philox.random_bits(11, 12, 13, *place) for place in places) == bits
    assert [philox.halved(k) for k in range(32)] == [*range(8), *range(8), *range(8, 16), *range(8, 16)]


@pytest.mark.parametrize("axes", [(0, 1), (1, 0), (0, 2), (2, 0)])
def test_blocks_are_spread_out_to_their_places(axes):
    halves = [np.arange(16), np.arange(8)]
    shape = lambda values, axis: values.reshape([-1 if k == axis else 1 for k in range(3)])
    block = philox.bits_of_block(np.int64(3), 4, 5, *map(shape, halves, axes))
    found = philox.spread_out(np.broadcast_arrays(*block), *axes, np.stack)
    rows, columns = (shape(np.arange(2 * len(x)), axis) for x, axis in zip(halves, axes))
    np.testing.assert_array_equal(found, philox.random_bits(np.int64(3), 4, 5, rows, columns))


def test_the_operation_of_terms_is_the_generator():
    seed = Tensor("seed", "int64", (2,))
    term = uniform(load(seed, const(0)), load(seed, const(1)), const(4), iota(ROW), iota(COLUMN))
    assert term.dtype == "float32" and term.dims == {ROW, COLUMN}
    numbers = np.array([2**62 + 3, 2**61 + 5])
    found = evaluate(term, {"seed": numbers}, (ROW, COLUMN))
    rows, columns = np.arange(5)[:, None], np.arange(17)[None]
    np.testing.assert_array_equal(found, philox.random_bits(*numbers, 4, rows, columns) * 2.0**-24)
    assert found.astype(np.float32).astype(float).tolist() == found.tolist(), "each is a float32"


def test_its_operands_are_whole_numbers():
    with pytest.raises(TermError, match="uniform does not take an operand of dtype bool"):
        make("uniform", (eq(iota(ROW), iota(ROW)),) * 5)


def test_means_and_neighbours_are_those_of_chance():
    """Bounds are five standard deviations: of a mean, and of a correlation of so many pairs."""
    many = 1 << 18
    found = philox.uniform(np.int64(77), 3, 0, np.arange(512)[:, None], np.arange(512)[None])
    assert abs(found.mean() - 0.5) < 5 * (1 / 12 / many) ** 0.5
    centred = (found - 0.5) * 12**0.5
    apart = [(centred[n:], centred[:-n]) for n in (1, 8)] + [(centred[:, n:], centred[:, :-n]) for n in (1, 8)]
    for one, other in (*apart, (centred, centred.T), (centred[8:, 8:], centred[:-8, :-8])):
        pairs = (one * other)[~np.eye(*one.shape, dtype=bool)]
        assert abs(pairs.mean()) < 7 / pairs.size**0.5

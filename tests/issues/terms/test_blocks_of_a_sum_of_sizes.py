"""A view of s - 2 blocks of 8 has 8*s - 16 elements: with dynamic sizes that was not seen, so the view stayed outside.

Pages of two tables joined page by page were therefore gathered in front of the region, where an entry behind a length,
which may hold anything, raised.
"""

import math

import pytest
import torch

import onepass
from onepass.egraph.terms.sizes import product, value_of
from tests.support.pages import SLOTS, attend, batch, doubled, hostile, plain

pytestmark = pytest.mark.usefixtures("fresh")

EQUAL = [
    (("s0 - 2", 8), ("8*s0 - 16",)),
    (("s0 - 2", "s1"), ("s0*s1 - 2*s1",)),
    (("s0 + s1", 3), ("3*(s1 + s0)",)),
    ((4, "(s0 - 1)//4 + 1"), ("4*((s0 - 1)//4) + 4",)),
    (("2 - s0",), ("-s0 + 2",)),
]


@pytest.mark.parametrize(("one", "other"), EQUAL)
def test_a_sum_is_its_common_factor_times_the_rest(one, other):
    assert product(one) == product(other)


@pytest.mark.parametrize("text", ["3*((s0 - 1)//4) + 3*s1", "s0 + s1*2 - 3*(s2 + 4)", "s0**0.5 + 1", "Max(1, s0) - 4"])
def test_a_key_has_the_value_of_its_size_and_is_its_own_key(text):
    number, names = product((text,))
    values = {"s0": 11, "s1": 7, "s2": 3}
    assert math.isclose(value_of(text, values), number * math.prod(value_of(name, values) for name in names))
    assert product((number, *names)) == (number, names)


def cut_blocks(q, k, v, *_):
    k, v = (x[:, 2:].flatten(1, 2).transpose(1, 2) for x in (k, v))
    return torch.softmax(q @ k.mT / 4, -1) @ v


def joined_pages(q, kc, vc, table, lengths, prefix):
    k, v = (torch.cat([c[prefix], c[table]], 1).flatten(1, 2).transpose(1, 2) for c in (kc, vc))
    return attend(q, k, v, lengths)


def joined_tables(q, kc, vc, table, lengths, prefix):
    k, v = (c[torch.cat([prefix, table], 1)].flatten(1, 2).transpose(1, 2) for c in (kc, vc))
    return attend(q, k, v, lengths)


def of_blocks(length, wild):
    return torch.randn(2, 3, 7, 16), *(torch.randn(2, length, 8, 3, 16) for _ in range(2))


def of_pages(length, wild):
    q, kc, vc, table, lengths = plain(hostile(batch(3, lengths=(1, 2 * length, 3 * length)), True)[not wild])
    return q, kc, vc, table, lengths + 2 * SLOTS, torch.arange(2).expand(3, 2).contiguous()


@pytest.mark.parametrize(
    ("function", "made"), [(cut_blocks, of_blocks), (joined_pages, of_pages), (joined_tables, of_pages)]
)
def test_the_view_is_in_the_kernel_and_the_results_are_right(function, made):
    run = onepass.compile(function, dynamic=True, libraries=False)
    for length in (5, 9):
        torch.manual_seed(length)
        given = made(length, wild=True)
        torch.manual_seed(length)
        right = function(*doubled(made(length, wild=False)))
        with torch.no_grad():
            torch.testing.assert_close(run(*given), right, check_dtype=False, atol=1e-5, rtol=1e-4)
    (region,) = onepass.reports()[-1].regions
    assert not any("outside" in note for note in region.around)

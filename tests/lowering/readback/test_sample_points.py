"""Samples of indices: within the dim, with both ends, on the diagonals of masks; ranges of whole numbers."""

import pytest

from onepass.egraph.terms.ops import const, eq, exp, iota, le, load, make, max_over, sum_over
from onepass.egraph.terms.sizes import UnknownSize, resolve
from onepass.egraph.terms.term import Dim, Tensor
from onepass.lowering.readback.sample_points import (
    MOST_INDICES,
    SHORT_LENGTH,
    Points,
    index_ranges,
    nodes_of,
    structured_sizes,
    symbol_values,
    weighed_sizes,
)

LENGTHS = (1, 2, 4, 5, 17, 300, 8192)
ROWS, COLUMNS = Dim("i", 300), Dim("j", 500)


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("structured", [False, True])
def test_a_sample_is_of_the_dim(length, structured):
    dim = Dim("j", length)
    found = Points({}, frozenset({length} if structured else ()), lengths=(length, 300))(dim)
    assert len({*found}) == len(found) <= max(SHORT_LENGTH, MOST_INDICES) and sorted(found) == [*found]
    assert 0 <= found[0] and found[-1] == length - 1
    if length <= SHORT_LENGTH:
        assert [*found] == [*range(length)]
    if structured:
        assert found[0] == 0


def test_rows_meet_columns_of_another_length_on_both_diagonals():
    points = Points({}, frozenset({300, 500}), lengths=(300, 500))
    rows, columns = points(ROWS), points(COLUMNS)
    assert {*rows} & {*columns} and {*(rows + 200)} & {*columns}
    assert any(i + 1 in columns for i in rows), "and beside them"


def test_dims_of_one_size_have_one_sample_and_all_of_a_whole_dim():
    points = Points({"s": 40}, whole=frozenset({"s"}))
    assert [*points(Dim("i", "s"))] == [*range(40)] and [*points(Dim("i", 9))] == [*points(Dim("j", 9))]


def test_which_sizes_are_structured_or_weighed():
    x = load(Tensor("x", "float32", (300, 500)), iota(ROWS), iota(COLUMNS))
    assert structured_sizes(nodes_of([sum_over(COLUMNS, x)])) == frozenset()
    assert structured_sizes(nodes_of([le(iota(COLUMNS), iota(ROWS))])) == {300, 500}
    assert weighed_sizes(nodes_of([exp(max_over(COLUMNS, x)), sum_over(ROWS, x)])) == {500}


def test_whole_numbers_are_indices_of_what_they_index_and_reach_what_they_are_compared_with():
    pages, ends, ids = (Tensor(name, "int64", (300,)) for name in ("pages", "ends", "ids"))
    at = lambda tensor, dim=ROWS: load(tensor, iota(dim))
    read = load(Tensor("x", "float32", (7,)), at(pages))
    found = index_ranges(nodes_of([read, le(iota(COLUMNS), at(ends)), eq(at(ids), at(ids, COLUMNS))]), {})
    assert found == {"pages": 7, "ends": 501}


def test_symbols_have_several_values():
    found = symbol_values([const(1.0)], [Dim("i", "2*s0"), Dim("j", "s1")])
    assert len(found) > 1 and all({*values} == {"s0", "s1"} for values in found)
    assert symbol_values([], [ROWS]) == [{}]


def test_with_these_values_every_length_has_an_index():
    lengths = ["12//s0", "12//(12//s0)", "s1 - 64", "Max(0, s1 - s2)", "s3"]
    for values in symbol_values([], [Dim(f"d{k}", size) for k, size in enumerate(lengths)]):
        assert all(resolve(size, values) > 0 for size in lengths), values
    with pytest.raises(UnknownSize, match="s0"):
        symbol_values([], [Dim("i", "Mod(s0, 1)")])
    read_backwards = make("size", (), ("s0 - s1",))  # only a number, which may be negative
    assert len(symbol_values([read_backwards], [Dim("i", "s0"), Dim("j", "s1")])) == 2

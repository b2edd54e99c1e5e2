"""When an index that is read from memory is a place of its tensor: the conditions, and which of them are known."""

import pytest

from onepass.egraph.terms.ops import const, iota, load, maximum, minimum
from onepass.egraph.terms.printing import show
from onepass.egraph.terms.term import Dim, Tensor
from onepass.lowering.analysis.data_indices import (
    all_place_conditions,
    blocks_of_tiles,
    loads_by_data,
    place_conditions,
    reads_memory,
)
from tests.lowering.planning.test_inline_producers import planned
from tests.support.pages import SPELLINGS, batch, plain

j, d = Dim("j", 40), Dim("d", 16)
PAGE = load(Tensor("table", "int64", (5,)), iota(j) // 8)
CONDITIONS = {
    "pages": (PAGE, 13, ["0 ≤ table[j // 8]", "table[j // 8] ≤ 12"]),
    "clamped from below": (maximum(PAGE, const(0)), 13, ["maximum(table[j // 8], 0) ≤ 12"]),
    "clamped": (minimum(maximum(PAGE, const(0)), const(12)), 13, []),
    "a symbolic number of pages": (PAGE, "p", ["0 ≤ table[j // 8]", "table[j // 8] ≤ p - 1"]),
    "computed": (iota(j) // 8, 13, []),
}


@pytest.mark.parametrize("name", CONDITIONS)
def test_only_what_is_not_known_is_tested(name):
    index, pages, conditions = CONDITIONS[name]
    node = load(Tensor("k", "float32", (pages, 8, 16)), index, iota(j) % 8, iota(d))
    assert [show(condition) for condition in place_conditions(node)] == conditions
    assert reads_memory(index) == (name != "computed")


def test_a_kernel_tests_what_its_guards_may_drop():
    (kernel,) = planned(SPELLINGS[0].function, plain(batch())).kernels
    (loop,) = kernel.loops
    assert {node.attrs[0].name for node in loads_by_data(kernel, loop)} == {"kc", "vc"}
    assert len(set(all_place_conditions(kernel))) == 2


@pytest.mark.parametrize("tile, blocks", [(1, {("j", 8)}), (8, {("j", 8)}), (16, set()), (3, set())])
def test_tiles_lie_in_a_page_whose_slots_they_divide(tile, blocks):
    (kernel,) = planned(SPELLINGS[0].function, plain(batch())).kernels
    assert blocks_of_tiles(kernel, {kernel.loops[0].dim: tile}) == blocks
    assert blocks_of_tiles(kernel, {}) == set()

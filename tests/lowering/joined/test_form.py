"""What of a joined kernel is what: products, weights, sums over the loop and over the rows; and what is refused."""

from dataclasses import replace

import pytest

from onepass.egraph.terms.traversal import rename_dims
from onepass.lowering.joined.form import bind_joined, tile_key
from onepass.lowering.joined.join import join
from tests.support.gluon_ahead_of_time import backward_plan_of


def main_of(kind, width=64, dtype="bfloat16"):
    return join(backward_plan_of(kind, width, dtype, batch=1, heads=4)).main


@pytest.fixture(scope="module")
def full():
    return main_of("full")


def test_the_product_of_the_exponent_is_issued_ahead(full):
    binding = bind_joined(full)
    assert [p.rows.tensor.name for p in binding.ahead] == ["arg1_1"]
    assert [p.rows.tensor.name for p in binding.late] == ["arg2_1"]
    assert [w.early for w in binding.weights] == [True, False]


def test_one_weight_serves_both_kinds_of_sums(full):
    binding = bind_joined(full)
    (added,) = binding.row_sums
    assert added.weight in {s.weight for s in binding.loop_sums}
    assert added.matrix.tensor.name == "arg1_1" and added.matrix.across == full.rows


def test_a_tile_of_memory_is_held_once_whatever_its_inner_dim_is_called(full):
    binding = bind_joined(full)
    assert sorted(o.tensor.name for o in binding.row_operands) == ["arg1_1", "arg2_1"]
    assert sorted(o.tensor.name for o in binding.streams) == ["arg0_1", "grad_output"]
    (matrix,) = [s.matrix for s in binding.row_sums]
    renamed = replace(matrix, load=rename_dims(matrix.load, {matrix.inner: replace(matrix.inner, name="other")}))
    assert tile_key(replace(renamed, inner=replace(matrix.inner, name="other"))) is tile_key(matrix)


def test_a_product_may_begin_at_a_number_for_each_column(full):
    binding = bind_joined(full)
    (start,) = binding.starts.values()
    assert start.sign == -1 and start.vector in binding.vectors
    assert not bind_joined(main_of("sigmoid")).starts


def test_two_vectors_go_with_the_tiles(full):
    assert len(bind_joined(full).vectors) == 2


def test_float32_tensors_are_refused():
    found = join(backward_plan_of("full", 64, "float32", batch=1, heads=2))
    assert found is None or isinstance(bind_joined(found.main), str)


def test_random_numbers_are_refused():
    assert "draws random numbers" in bind_joined(main_of("dropout"))


def test_wide_operands_are_refused():
    assert "wider than 256" in bind_joined(main_of("full", 512))

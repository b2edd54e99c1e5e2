"""How a sum that lacks the rows of its products is cut in two, and what stays whole."""

from onepass.egraph.terms.ops import const, iota, le, load, sum_over, where
from onepass.egraph.terms.term import Dim, Tensor
from onepass.lowering.analysis.shared_sums import cut_of, top_sums
from onepass.lowering.plan.records import Store

B, H, I, J, D = Dim("b", 2), Dim("h", 3), Dim("i", 600), Dim("j", 500), Dim("d", 16)
ZERO = const(0.0)


def read(name, *dims):
    return load(Tensor(name, "float32", tuple(d.size for d in dims)), *map(iota, dims))


def store(term, *order):
    return Store(term, Tensor("out", "float32", tuple(d.size for d in order)), order)


PRODUCT = sum_over(D, read("q", B, H, I, D) * read("k", B, H, J, D)) * read("l", B, H, I)
BY_COLUMNS = store(sum_over(I, PRODUCT * read("q", B, H, I, D)), B, H, J, D)
BY_ROWS = store(sum_over(J, PRODUCT * read("k", B, H, J, D)), B, H, I, D)
NUMBER = store(sum_over(J, sum_over(I, sum_over(B, PRODUCT * 2.0))), H)


def test_the_first_half_has_the_loop_of_another_store():
    for other, first, dims, rest in ((BY_COLUMNS, I, (B, H, J), (J, B)), (BY_ROWS, J, (B, H, I), (I, B))):
        found = cut_of(NUMBER, [other, NUMBER])
        assert found.root is NUMBER.term and found.part is sum_over(first, PRODUCT * 2.0)
        assert found.dims == dims and found.rest == rest and not found.apart


def test_of_several_loops_it_is_that_of_more_stores():
    again = store(sum_over(J, PRODUCT), B, H, I)
    assert cut_of(NUMBER, [BY_COLUMNS, BY_ROWS, again]).dims == (B, H, I)


def test_without_another_loop_one_side_of_the_products_is_summed_first():
    assert cut_of(NUMBER, [NUMBER]).part is sum_over(I, PRODUCT * 2.0), "the longer one"
    assert cut_of(BY_COLUMNS, [BY_ROWS, BY_COLUMNS]) is None, "it has rows"


def test_another_guard_is_another_part_with_the_same_loop():
    masked = where(le(iota(I), iota(J)), PRODUCT, ZERO)
    number = store(sum_over(J, sum_over(I, masked)), B, H)
    found = cut_of(number, [BY_COLUMNS, number])
    assert found.part is sum_over(I, masked) and found.rest == (J,)


def test_what_has_other_axes_stays_whole():
    other = store(sum_over(I, sum_over(B, PRODUCT)), H, J)
    pairs = store(sum_over(B, PRODUCT), H, I, J)
    assert cut_of(pairs, [BY_COLUMNS, BY_ROWS, pairs]) is None
    found = cut_of(NUMBER, [other, NUMBER])
    assert found.part in (sum_over(I, sum_over(B, PRODUCT * 2.0)), sum_over(B, sum_over(I, PRODUCT * 2.0)))
    assert found.dims == (H, J) and found.rest == (J,)


def test_too_many_parts_are_added_in_two_steps():
    many = Dim("n", 700)
    product = sum_over(D, read("q", many, I, D) * read("k", many, J, D)) * read("x", many)
    found = cut_of(store(sum_over(many, sum_over(J, sum_over(I, product)))), [])
    assert found.rest == (many, J) and found.apart


def test_sums_without_products_stay_whole():
    assert cut_of(store(sum_over(I, sum_over(J, read("x", I) * read("y", J)))), []) is None
    assert [r.attrs[1] for r in top_sums(sum_over(I, sum_over(J, read("x", I, J))) * sum_over(D, read("z", D)))] in (
        [I, D],
        [D, I],
    )

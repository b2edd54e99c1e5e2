"""Pictures of masks against brute force: what is skipped holds nothing that is kept, what is full nothing else."""

import numpy as np
import pytest
from hypothesis import given, settings

from onepass.egraph.terms.evaluate import evaluate
from onepass.egraph.terms.ops import eq, iota, le, load, logical_and
from onepass.egraph.terms.sizes import UnknownSize
from onepass.egraph.terms.term import Dim, Tensor
from onepass.lowering.masks import tile_picture
from onepass.lowering.masks.block_map import EMPTY, FULL, PARTIAL
from onepass.lowering.masks.loop_ranges import block_map, ranges
from onepass.lowering.masks.tile_picture import UNKNOWN, tile_pictures
from onepass.lowering.plan.records import Kernel, Loop
from tests.support.predicates import guarded

B, I, J = Dim("b", 3), Dim("i", 100), Dim("j", 90)
DOCUMENTS = Tensor("documents", "int64", (3, 100))
LENGTHS = Tensor("lengths", "int64", (3,))
SAME = eq(load(DOCUMENTS, iota(B), iota(I)), load(DOCUMENTS, iota(B), iota(J)))


def loop_of(guard, rows, columns, grid, finite_mask=False):
    mapped = block_map(guard, columns, rows, grid, (), finite_mask)
    loop = Loop(columns, "j_tile", (), guard, ranges(guard, columns, rows), mapped, finite_mask=finite_mask)
    return Kernel("kernel0", tuple(grid), rows, "i_tile", (), (loop,), (), ()), loop


def blocks(kept, picture):
    """(class, what of the tile is kept) of each tile."""
    rows, columns = picture.tile
    for (y, x), kind in np.ndenumerate(picture.classes):
        yield kind, kept[y * rows : (y + 1) * rows, x * columns : (x + 1) * columns]


def kept_at(guard, dims, at, arrays=None):
    values = evaluate(guard, arrays or {}, dims)
    return np.broadcast_to(values, [d.size for d in dims])[at].astype(bool)


@settings(max_examples=20)
@given(guarded())
def test_classes_by_ranges_are_sound(drawn):
    i, j, g, guard = drawn
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tile_picture, "SMALL_TILE", 4)
        pictures = tile_pictures(*loop_of(guard, i, j, [g]), {}, {})
    assert pictures[0].at in ((), (("g", 0),)) and not pictures[0].missing
    for picture in pictures:
        kept = kept_at(guard, (g, i, j), dict(picture.at).get("g", 0))
        for kind, block in blocks(kept, picture):
            assert kind != EMPTY or not block.any()
            assert kind != FULL or block.all()


def test_a_causal_mask_is_a_triangle():
    (picture,) = tile_pictures(*loop_of(le(iota(J), iota(I)), I, J, [B]), {}, {})
    assert picture.tile == (16, 16) and picture.lengths == (100, 90) and picture.at == ()
    y, x = np.indices(picture.classes.shape)
    assert (picture.classes[y < x] == EMPTY).all() and (picture.classes[(y > x) & (x < 5)] == FULL).all()
    assert (picture.classes[y == x] == PARTIAL).all()
    assert picture.share(EMPTY) == pytest.approx((y < x).mean())


def documents():
    rng = np.random.default_rng(0)
    return np.sort(rng.integers(0, 4, (3, 100)), axis=1)


@pytest.mark.parametrize("guard", [SAME, logical_and(SAME, le(iota(J), iota(I)))])
def test_classes_of_data_are_exact(guard):
    arrays = {"documents": documents()}
    pictures = tile_pictures(*loop_of(guard, I, J, [B]), {}, arrays)
    assert [p.at for p in pictures] == [(("b", n),) for n in range(3)]
    for n, picture in enumerate(pictures):
        for kind, block in blocks(kept_at(guard, (B, I, J), n, arrays), picture):
            assert kind == (FULL if block.all() else PARTIAL if block.any() else EMPTY)


def test_equal_pictures_are_one():
    arrays = {"documents": np.zeros((3, 100), int)}
    (picture,) = tile_pictures(*loop_of(SAME, I, J, [B]), {}, arrays)
    assert (picture.classes == FULL).all()


def test_a_row_that_keeps_nothing_weighs_all_alike():
    guard = logical_and(SAME, le(iota(J) + 40, iota(I)))
    arrays = {"documents": np.zeros((3, 100), int)}
    dropped, alike = (tile_pictures(*loop_of(guard, I, J, [B], finite), {}, arrays)[0] for finite in (False, True))
    assert (dropped.classes[0] == EMPTY).all() and (alike.classes[0] == PARTIAL).all()
    assert (dropped.classes[3:] == alike.classes[3:]).all()


def test_what_is_not_at_hand_is_not_guessed():
    guard = logical_and(SAME, le(iota(J), iota(I)))
    (picture,) = tile_pictures(*loop_of(guard, I, J, [B]), {}, {})
    y, x = np.indices(picture.classes.shape)
    assert picture.missing == ("documents",)
    assert (picture.classes[y < x] == EMPTY).all() and (picture.classes[y >= x] == UNKNOWN).all()


def test_lengths_that_are_data_end_the_loop():
    guard = le(iota(J) + 1, load(LENGTHS, iota(B)))
    kernel, loop = loop_of(guard, I, J, [B])
    pictures = tile_pictures(kernel, loop, {}, {"lengths": np.array([0, 33, 90])})
    assert [p.share(EMPTY) for p in pictures] == [1, 0.5, 0] and pictures[1].share(FULL) == pytest.approx(2 / 6)
    (unknown,) = tile_pictures(kernel, loop, {}, {})
    assert unknown.missing == ("lengths",) and (unknown.classes == UNKNOWN).all()


def test_large_masks_are_looked_at_in_some_rows(monkeypatch):
    monkeypatch.setattr(tile_picture, "MAX_ELEMENTS", 1000)
    arrays = {"documents": documents()}
    for picture in tile_pictures(*loop_of(SAME, I, J, [B]), {}, arrays):
        assert picture.step == 16 and picture.classes.shape == (7, 6)
        kept = kept_at(SAME, (B, I, J), dict(picture.at)["b"], arrays)
        assert all(block.any() for kind, block in blocks(kept, picture) if kind == PARTIAL)


def test_long_sides_have_large_tiles_and_no_rows_are_one():
    long = Dim("j", "s0")
    kernel, loop = loop_of(le(iota(long), iota(I)), I, long, [B])
    (picture,) = tile_pictures(kernel, loop, {"s0": 1 << 20}, {})
    assert picture.tile == (16, 1024) and picture.classes.shape == (7, 1024)
    with pytest.raises(UnknownSize):
        tile_pictures(kernel, loop, {}, {})
    kernel, loop = loop_of(le(iota(J), iota(B)), None, J, [B])
    first = tile_pictures(kernel, loop, {}, {})[0]
    assert (first.lengths, first.tile) == ((1, 90), (1, 16))


def test_a_loop_without_a_mask_has_no_picture():
    kernel = Kernel("kernel0", (), I, "i_tile", (), (), (), ())
    assert tile_pictures(kernel, Loop(J, "j_tile", ()), {}, {}) == []

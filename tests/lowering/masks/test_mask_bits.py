"""Guards as bits: words against brute force, which guards have them, and what kernels test beside them.

Kernels that test the bits need a Hopper GPU; here is what they read, and their text.
"""

import ast
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from onepass.egraph.terms.evaluate import evaluate
from onepass.egraph.terms.ops import iota, le, load, logical_and, logical_or
from onepass.egraph.terms.term import Dim, Tensor
from onepass.egraph.terms.traversal import tensors
from onepass.lowering.gluon.launch import SuitedTensors, fitting, prepare
from onepass.lowering.hopper.config import HopperConfig
from onepass.lowering.hopper.kernel_form import bind
from onepass.lowering.hopper.mask_words import packed, small
from onepass.lowering.masks.block_map import MapCache
from onepass.lowering.masks.mask_bits import PackedTiling
from onepass.lowering.plan.device import H200
from onepass.lowering.plan.records import BlockMap
from onepass.lowering.triton.launch import build_map
from tests.lowering.masks.test_block_map import DEVICE, dense, dense_by_head, documents, guard_with_masks, random_blocks
from tests.lowering.masks.test_block_map import data as tensors_of
from tests.support.gluon_ahead_of_time import plan_of, source_of

READ = (dense, dense_by_head, random_blocks)


def unpacked(words, rows, columns, tile):
    """The bits as [..., rows, columns], from where PTX says that a warpgroup's threads hold a product's elements."""
    *outer, tall, wide, _ = words.shape
    found = torch.zeros(*outer, tall * H200.product_rows, wide * tile, dtype=torch.bool)
    by_tile = found.view(*outer, tall, H200.product_rows, wide, tile)
    for thread in range(128):
        for n in range(tile // 2):
            row = 16 * (thread // 32) + thread % 32 // 4 + 8 * (n // 2 % 2)
            column = 8 * (n // 4) + 2 * (thread % 4) + n % 2
            word = words[..., thread * tile // 64 + n // 32]
            by_tile[..., row, :, column] = word >> n % 32 & 1 == 1
    assert not found[..., :rows, columns:].any(), "no bit is set behind the loop's end"
    return found[..., :rows, :columns]


@pytest.mark.slow
@settings(max_examples=12)
@given(st.sampled_from(READ), st.integers(1, 150), st.integers(1, 200), st.sampled_from([64, 128]), st.integers(0, 9))
def test_words_are_what_brute_force_finds(guard, rows, columns, tile, seed):
    b, h, i, j = Dim("b", 2), Dim("h", 4), Dim("i", rows), Dim("j", columns)
    given_tensors, kept = tensors_of(rows, columns, seed)
    term = guard(b, h, i, j)
    record = BlockMap(term, j, tuple(d for d in (b, h) if d in term.dims), (i,))
    tiling = PackedTiling(record, H200.product_rows, tile, (("length", max(rows, columns)),))
    found = build_map(tiling, given_tensors)[0].cpu()
    expected = kept[guard][0] if h in term.dims else kept[guard][0, 0]
    assert torch.equal(unpacked(found, rows, columns, tile), expected)


@pytest.mark.slow
@settings(max_examples=12)
@given(st.data())
def test_words_of_random_guards_with_broadcast_masks(data):
    i, j, g = Dim("i", data.draw(st.integers(1, 90))), Dim("j", data.draw(st.integers(1, 140))), Dim("g", 2)
    guard, given_tensors = guard_with_masks(data.draw, i, j, g, most=2)
    record = BlockMap(guard, j, (g,) if g in guard.dims else (), (i,))
    arrays = {n: t.numpy() for n, t in given_tensors.items()}
    kept = torch.from_numpy(evaluate(guard, arrays, (*record.dims, i, j)).astype(bool))
    kept = kept.expand(*(d.size for d in (*record.dims, i, j)))
    tiling = PackedTiling(record, H200.product_rows, 64, ())
    found = build_map(tiling, {n: t.to(DEVICE) for n, t in given_tensors.items()})[0].cpu()
    assert torch.equal(unpacked(found, i.size, j.size, 64), kept)


def test_words_are_made_again_after_a_write():
    i, j = Dim("i", 70), Dim("j", 64)
    mask = torch.rand(70, 64, device=DEVICE) < 0.5
    words = PackedTiling(BlockMap(dense(None, None, i, j), j, (), (i,)), H200.product_rows, 64, ())
    cache, read = MapCache(), lambda: cache.get(words, {"dense": mask}, build_map)[0]
    assert read() is read()
    mask.logical_not_()
    assert torch.equal(unpacked(read().cpu(), 70, 64, 64), mask.cpu())


# Which guards have bits


def bound(guard, rows=256, columns=256):
    """A binding of the form whose guard this is, its dims given by name."""
    binding = bind(plan_of("full", 64, rows=rows, columns=columns).kernels[0])
    b, h = binding.kernel.grid
    guard = guard(b, h, binding.kernel.rows, binding.loop.dim)
    record = BlockMap(guard, binding.loop.dim, tuple(d for d in (b, h) if d in guard.dims), (binding.kernel.rows,))
    return replace(binding, loop=replace(binding.loop, guard=guard, map=record))


def by_batch(b, h, i, j):
    keep = load(Tensor("keep", "bool", (b.size, i.size)), iota(b), iota(i))
    return logical_and(logical_and(dense(b, h, i, j), le(iota(j), iota(i))), keep)


def test_what_has_more_dims_than_the_bits_is_tested_beside_them():
    found = packed(bound(by_batch))
    assert {t.name for t in tensors(found.record.guard)} == {"dense"} and found.record.dims == ()
    assert {t.name for t in tensors(found.rest)} == {"keep"}
    alone = packed(bound(lambda b, h, i, j: logical_or(dense(b, h, i, j), le(iota(j), iota(i)))))
    assert alone.rest is None and alone.record.dims == ()
    assert [d.name for d in packed(bound(dense_by_head)).record.dims] == ["h"]


@pytest.mark.parametrize("guard", [documents, lambda b, h, i, j: le(iota(j), iota(i))])
def test_guards_of_vectors_and_of_places_have_none(guard):
    assert packed(bound(guard)) is None


def test_no_more_bits_are_kept_than_an_input_takes_memory():
    found = packed(bound(dense))
    assert small(found, {"dense": torch.zeros(256, 256, dtype=torch.bool)}, {})
    assert not small(found, {"dense": torch.zeros(1, 256, dtype=torch.bool).expand(256, 256)}, {})
    assert not small(packed(bound(random_blocks)), {"drawn": torch.zeros(32, 32, dtype=torch.bool)}, {})


@pytest.mark.parametrize("kind,beside", [("boolean", False), ("joined", True)])
def test_a_kernel_tests_bits_and_reads_no_mask(kind, beside):
    plan = plan_of(kind, 64, rows=1024, columns=1024)
    binding, config, source = source_of(plan)
    ast.parse(source.text)
    mask = next(t.name for t in plan.inputs if t.dtype == "bool")
    assert "kept(" in source.text and f"{mask}_tile" not in source.text
    assert (packed(binding).rest is not None) == beside == ("_tile = gl.load(" in source.text)
    prepared = prepare(binding, config, {}, SuitedTensors(packed=packed(binding)))
    assert (prepared.words.tile, prepared.words.row_tile) == (config.loop_tile, H200.product_rows)
    assert prepare(binding, config, {}).words is None


@pytest.mark.parametrize("kind,consumers", [("boolean", 4), ("documents", 1)])
def test_warpgroups_share_tiles_where_a_mask_may_leave_all(kind, consumers):
    """A warpgroup alone reads every tile anew: where all of them run that is more than the L2 gives."""
    binding = bind(plan_of(kind, 64, rows=4096, columns=4096).kernels[0])
    assert fitting(binding, {}).consumers == consumers


def test_few_tiles_are_tested_as_the_guard_stands():
    binding = bind(plan_of("boolean", 64, rows=256, columns=256).kernels[0])
    assert prepare(binding, HopperConfig(2, 64), {}, SuitedTensors(packed=packed(binding))).shape.packed is None


def test_the_report_says_which_kernels_test_bits():
    import onepass

    q = torch.empty(1, 2, 64, 64, dtype=torch.bfloat16)
    attention = lambda q, k, v, mask: torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    assert "as bits" in str(onepass.explain(attention, q, q, q, torch.ones(64, 64, dtype=torch.bool)))
    assert "as bits" not in str(onepass.explain(attention, q, q, q, torch.ones(64, 64, dtype=torch.bfloat16)))

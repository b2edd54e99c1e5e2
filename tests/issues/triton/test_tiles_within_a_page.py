"""The entry of a page was read from the table for each slot of a tile, also where the tile lies in one page.

Where the slots of a page are a multiple of a tile's, the entry is one number, and places are distances from the first.
"""

from dataclasses import replace

import pytest
import torch

from onepass.lowering.analysis.data_indices import blocks_of_tiles
from onepass.lowering.plan.kernel_config import TritonConfig
from onepass.lowering.plan.launch_facts import Facts
from onepass.lowering.triton import launch
from onepass.lowering.triton.kernel import emit
from tests.issues.fusion.test_pages_read_in_place import close, compiled
from tests.issues.triton.test_places_behind_a_length import at_a_distance, of_every_other_key
from tests.lowering.planning.test_inline_producers import planned
from tests.support import pages
from tests.support.pages import (
    by_gather,
    by_index,
    by_slots,
    doubled,
    heads_before_slots,
    hostile,
    of_heads_first,
    plain,
    quantised,
    quantised_by_page,
    with_a_bias_by_page,
)

pytestmark = pytest.mark.usefixtures("fresh")
SLOTS, PAGES = 32, pages.PAGES
CONFIGS = (TritonConfig(16, 16, 4, 2), TritonConfig(8, 16, 1, 2), TritonConfig(16, 32, 4, 2, chunks=3))
PROGRAMS = {
    by_index: plain,
    at_a_distance: plain,
    of_every_other_key: plain,
    by_gather: plain,
    by_slots: plain,
    heads_before_slots: of_heads_first,
    quantised_by_page: quantised,
    with_a_bias_by_page: lambda x: (*plain(x), torch.randn(PAGES, SLOTS)),
}


@pytest.fixture(autouse=True)
def longer_pages(monkeypatch):
    monkeypatch.setattr(pages, "SLOTS", SLOTS)


def batch(rows):
    return pages.batch(rows, 8, (1, SLOTS - 1, SLOTS, SLOTS + 1, 0, 3 * SLOTS, pages.ROW * SLOTS))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("config", CONFIGS, ids=str)
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("function", [f for f in PROGRAMS if f is not quantised_by_page], ids=lambda f: f.__name__)
def test_pages_are_read_as_before(function, rows, config, monkeypatch):
    is_read_as_before(function, rows, config, monkeypatch)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_scales_of_pages_are_read_as_before(config, monkeypatch):
    """For one row: for more, pages with scales are gathered in front."""
    is_read_as_before(quantised_by_page, 1, config, monkeypatch)


def is_read_as_before(function, rows, config, monkeypatch):
    monkeypatch.setattr(launch, "default_for", lambda *_: config)
    seen, plain_emit = [], launch.emit
    monkeypatch.setattr(launch, "emit", lambda *given: seen.append(plain_emit(*given)) or seen[-1])
    wild, tame = hostile(batch(rows), negative=function in (by_index, at_a_distance))
    torch.manual_seed(1)
    given = PROGRAMS[function](wild)
    torch.manual_seed(1)
    right = PROGRAMS[function](tame)
    with torch.no_grad():
        close(compiled(function, "triton")(*given), function(*doubled(right)))
    assert any("table_tile = tl.load(table_base + tl.cast(floordiv" in source.text for source in seen)


def test_only_tiles_that_divide_a_page_lie_in_one():
    plan = planned(by_index, plain(batch(1)))
    (kernel,) = plan.kernels
    (loop,) = kernel.loops
    found = {tile: blocks_of_tiles(kernel, {loop.dim: tile}) for tile in (16, 32, 64)}
    assert found == {16: {("j", SLOTS)}, 32: {("j", SLOTS)}, 64: frozenset()}
    texts = [emit(kernel, plan, replace(Facts(), blocks=found[tile])).text for tile in (16, 64)]
    assert [text.count("floordiv_j = ") for text in texts] == [0, 1]


def test_a_guard_that_may_drop_all_of_a_tile_asks_whether_the_entry_is_a_page():
    """A scale of each page is read by the entry of the first column alone."""
    x = batch(3)
    plan = planned(quantised_by_page, quantised(x))
    text = emit(plan.kernels[0], plan, Facts(blocks=frozenset({("j", SLOTS)}))).text
    (guarded,) = [line for line in text.splitlines() if line.strip().startswith("ks_tile") and "mask=" in line][:1]
    assert "tl.full(" not in guarded and f"{PAGES - 1}" in text

"""Pictures of masks as SVG: every tile is drawn once in its class, shares are those of the tiles, failures are said."""

import re
from dataclasses import replace

import numpy as np
import pytest
import torch

import onepass
from onepass.egraph.terms.term import Dim
from onepass.lowering.masks.block_map import EMPTY, FULL, PARTIAL
from onepass.lowering.masks.tile_picture import UNKNOWN, TilePicture
from onepass.page import mask_svg
from onepass.page.mask_svg import NAMES, mask_views, percent

X = torch.randn(2, 64, 16)
RUN = re.compile(r"M(\d+) (\d+)h(\d+)v1h-(\d+)z")


def drawn(svg: str) -> np.ndarray:
    """The classes of the cells as they are drawn; each cell once."""
    wide, tall = map(int, re.search(r'viewBox="0 0 (\d+) (\d+)"', svg).groups())
    cells = np.full((tall, wide), -1)
    for name, path in re.findall(r'<path class="(\w+)" d="([^"]*)"/>', svg):
        if name != "grid":
            for x, y, width, back in (map(int, run) for run in RUN.findall(path)):
                assert width == back and (cells[y, x : x + width] == -1).all()
                cells[y, x : x + width] = {text: kind for kind, text in NAMES.items()}[name]
    assert (cells >= 0).all()
    return cells


def picture(classes) -> TilePicture:
    return TilePicture("i", "j", (64, 64), tuple(64 * n for n in classes.shape), classes)


def test_each_tile_is_drawn_in_its_class():
    classes = np.random.default_rng(0).integers(0, 4, (7, 9)).astype(np.int8)
    assert (drawn(mask_svg._svg(picture(classes))) == classes).all()


def test_a_cell_of_several_tiles_is_partial_where_they_differ(monkeypatch):
    monkeypatch.setattr(mask_svg, "MAX_CELLS", 2)
    classes = np.array([[FULL, FULL, EMPTY, EMPTY], [FULL, FULL, EMPTY, PARTIAL], [UNKNOWN, EMPTY, FULL, EMPTY]])
    cells = drawn(mask_svg._svg(picture(classes.astype(np.int8))))
    assert cells.tolist() == [[FULL, PARTIAL], [UNKNOWN, PARTIAL]]


def window(q, k, v):
    i, j = torch.arange(q.shape[-2])[:, None], torch.arange(k.shape[-2])[None]
    return torch.softmax(torch.where((j <= i) & (i - j < 20), q @ k.mT, float("-inf")), -1) @ v


def by_documents(q, k, v, documents):
    same = documents[:, :, None] == documents[:, None]
    return torch.softmax((q @ k.mT).masked_fill(~same, float("-inf")), -1) @ v


def views(function, *inputs):
    (region,) = onepass.explain(function, *inputs).regions
    data, (kernel,) = region.data, region.data.plan.kernels
    return mask_views(kernel, kernel.loops[0], data.sizes, data.tensors)


def test_a_window_is_a_band():
    (view,) = views(window, X, X.clone(), X.clone())
    y, x = np.indices((4, 4))
    assert (drawn(view.svg) == np.where((x > y) | (y - x > 2), EMPTY, PARTIAL)).all()
    assert dict(view.shares) == {"partial": "56.2 %", "skipped": "43.8 %"}
    assert view.notes == ("64 × 64 elements in tiles of 16 × 16; i down, j across",)


def test_a_mask_of_data_is_drawn_for_the_call():
    documents = torch.stack([torch.arange(64) // 16, torch.zeros(64, dtype=torch.int64)])
    first, second = views(by_documents, X, X.clone(), X.clone(), documents)
    assert (drawn(first.svg) == np.where(np.eye(4), FULL, EMPTY)).all() and (drawn(second.svg) == FULL).all()
    assert first.notes[1] == "at h = 0" and "of the data of this call" in first.notes


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.bool])
def test_masks_of_every_dtype_are_read(kind):
    def biased(q, k, v, mask):
        return torch.softmax((q @ k.mT).masked_fill(mask == 0, float("-inf")), -1) @ v

    mask = torch.ones(64, 64).tril().to(kind)
    (view,) = views(biased, X, X.clone(), X.clone(), mask)
    assert (drawn(view.svg)[np.triu_indices(4, 1)] == EMPTY).all()


def test_values_that_are_not_at_hand_are_named():
    meta = [torch.empty(2, 64, 16, device="meta") for _ in range(3)]
    (view,) = views(by_documents, *meta, torch.empty(2, 64, dtype=torch.int64, device="meta"))
    assert dict(view.shares) == {"unknown": "100 %"}
    assert any("by the values of documents" in note for note in view.notes)


def test_a_size_without_a_number_is_no_picture():
    torch._dynamo.reset()
    (region,) = onepass.explain(window, X, X.clone(), X.clone()).regions
    (kernel,) = region.data.plan.kernels
    kernel = replace(kernel, rows=Dim("i", "s0"))
    (view,) = mask_views(kernel, kernel.loops[0], {}, {})
    assert not view.svg and "no picture" in view.why_not and "s0" in view.why_not


@pytest.mark.parametrize(
    ("share", "text"),
    [(0, "0 %"), (1, "100 %"), (0.5, "50 %"), (1e-9, "under 0.1 %"), (1 - 1e-9, "over 99.9 %"), (1.25, "125 %")],
)
def test_shares_in_percent(share, text):
    assert percent(share) == text

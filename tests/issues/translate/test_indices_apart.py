"""Index tensors with a slice between them, as in cache[pages, :, heads], were refused, so that chosen pages were
copied in front of the kernel. Their own axes stand first then."""

import math

import pytest
import torch

import onepass
from onepass.api.backend import onepass_backend

pytestmark = pytest.mark.usefixtures("fresh")
PAGES, SLOTS, GROUPS, WIDTH, HEADS = 12, 8, 2, 16, 8


def chosen(q, kc, vc, pages, lengths):
    """Attention to the pages that each key head has chosen: pages [B, G, n], caches [pages, slots, G, D]."""
    heads = torch.arange(GROUPS)[:, None]
    k, v = (c[pages, :, heads].flatten(2, 3) for c in (kc, vc))
    k, v = (x.repeat_interleave(HEADS // GROUPS, 1) for x in (k, v))
    keep = torch.arange(k.shape[2]) < lengths[:, None, None, None]
    return (q @ k.mT / WIDTH**0.5).masked_fill(~keep, -math.inf).softmax(-1) @ v


def of_layers(q, kc, vc, pages, lengths):
    """The same with an axis in front, which then stands behind the axes of the indices."""
    heads = torch.arange(GROUPS)[:, None]
    k, v = (torch.stack([c, -c])[:, pages, :, heads].select(3, 1).flatten(2, 3) for c in (kc, vc))
    k, v = (x.repeat_interleave(HEADS // GROUPS, 1) for x in (k, v))
    keep = torch.arange(k.shape[2]) < lengths[:, None, None, None]
    return (q @ k.mT / WIDTH**0.5).masked_fill(~keep, -math.inf).softmax(-1) @ v


def inputs():
    """Pages that repeat, negative ones, and a length that ends in the middle of a page."""
    torch.manual_seed(0)
    caches = [torch.randn(PAGES, SLOTS, GROUPS, WIDTH) for _ in range(2)]
    pages = torch.randint(-PAGES, PAGES, (3, GROUPS, 5))
    pages[0] = pages[0, :, :1]
    return [torch.randn(3, HEADS, 1, WIDTH), *caches, pages, torch.tensor([1, 21, 40])]


def test_chosen_pages_are_read_in_the_kernel():
    (region,) = onepass.explain(chosen, *inputs()).regions
    gathers = [line for line in region.around if "gather of" in line]
    assert len(gathers) == 2 and all("computed in the kernel" in line for line in gathers)


@pytest.mark.parametrize("attend", [chosen, of_layers])
def test_it_computes_the_right_thing(attend):
    tensors = inputs()
    compiled = torch.compile(attend, backend=onepass_backend, options={"inner": "eager", "require": "all"})
    exact = attend(*(x.double() if x.is_floating_point() else x for x in tensors))
    torch.testing.assert_close(compiled(*tensors).double(), exact, rtol=1e-5, atol=1e-5)

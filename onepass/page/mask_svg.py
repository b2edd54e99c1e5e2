"""The mask of a loop as a picture of tiles, in SVG: full, partial, skipped, or decided by data that is not at hand.

Neighbouring tiles are drawn as one cell where there are many, and equal cells of a row as one shape. Example: a causal
mask is a triangle, and 47 % of its tiles are left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import torch

from ..egraph.terms.sizes import UnknownSize
from ..egraph.terms.term import TermError
from ..lowering.masks.block_map import EMPTY, FULL, PARTIAL, pays
from ..lowering.masks.tile_picture import UNKNOWN, TilePicture, tile_pictures
from ..lowering.plan.records import Kernel, Loop

MAX_CELLS = 64  # on a side
MAX_BYTES = 1 << 28  # of a tensor that is read for a picture
NAMES = {FULL: "full", PARTIAL: "partial", EMPTY: "skipped", UNKNOWN: "unknown"}
ERRORS = (UnknownSize, TermError, IndexError, ValueError, TypeError, RuntimeError)


@dataclass(frozen=True)
class MaskView:
    """A picture with what is said of it. shares: of tiles, by class, in percent. why_not: why there is no picture."""

    title: str
    svg: str = ""
    shares: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()
    why_not: str = ""


def mask_views(
    kernel: Kernel, loop: Loop, sizes: Mapping[str, int], tensors: Mapping[str, torch.Tensor]
) -> tuple[MaskView, ...]:
    """The pictures of a loop's mask. sizes: numbers for symbolic sizes. tensors: what is at hand of the mask's."""
    title = f"{kernel.rows or 'each program'} by {loop.over}"
    try:
        arrays = {name: found for name, x in tensors.items() if (found := _array(x)) is not None}
        pictures = tile_pictures(kernel, loop, sizes, arrays)
        return tuple(MaskView(title, _svg(p), _shares(p), tuple(_notes(p, kernel, loop, sizes))) for p in pictures)
    except ERRORS as error:
        return (MaskView(title, why_not=f"no picture at these sizes: {' '.join(str(error).split())}"),)


def _array(x: torch.Tensor) -> np.ndarray | None:
    """The tensor's values; None of one without values, or a large one."""
    if x.device.type == "meta" or x.numel() * x.element_size() > MAX_BYTES or type(x) not in _PLAIN:
        return None
    x = x.detach()
    x = x if x.device.type == "cpu" else x.cpu()
    return (x.float() if x.dtype in (torch.bfloat16, torch.float16) else x).numpy()


_PLAIN = (torch.Tensor, torch.nn.Parameter)


def _shares(picture: TilePicture) -> tuple[tuple[str, str], ...]:
    found = ((NAMES[kind], picture.share(kind)) for kind in NAMES)
    return tuple((name, percent(share)) for name, share in found if share)


def percent(share: float) -> str:
    """A share in percent; neither 0 nor 100 where it is only close to them."""
    number = f"{100 * share:.1f}".rstrip("0").rstrip(".")
    if share and number == "0":
        return "under 0.1 %"
    return "over 99.9 %" if share < 1 and number == "100" else f"{number} %"


def _notes(picture: TilePicture, kernel: Kernel, loop: Loop, sizes: Mapping[str, int]) -> Iterator[str]:
    """What a reader has to know to read the picture."""
    rows, columns = picture.lengths
    tall, wide = picture.tile
    if picture.rows:
        yield f"{rows} × {columns} elements in tiles of {tall} × {wide}; {picture.rows} down, {picture.loop} across"
    else:
        yield f"{columns} elements of {picture.loop} in tiles of {wide}"
    if picture.at:
        yield f"at {', '.join(f'{name} = {n}' for name, n in picture.at)}"
    if picture.missing:
        yield f"decided by the values of {', '.join(picture.missing)}, which are known in a call: explain draws them"
    elif loop.map is not None or loop.length_is_data:
        yield f"of the data of this call{f', looked at in every {picture.step}th row' if picture.step > 1 else ''}"
    if loop.map is not None and not pays(kernel, loop.map, tall, wide, sizes):
        yield "at these sizes a block map costs more than it saves: tiles that the ranges allow are tested instead"


def _svg(picture: TilePicture) -> str:
    """The picture: a unit for a cell, one path for each class."""
    cells = _cells(picture.classes)
    height, width = cells.shape
    paths: dict[int, list[str]] = {}
    for y, row in enumerate(cells.tolist()):
        x = 0
        for kind, run in groupby(row):
            count = len([*run])
            paths.setdefault(kind, []).append(f"M{x} {y}h{count}v1h-{count}z")
            x += count
    drawn = "".join(f'<path class="{NAMES[kind]}" d="{"".join(d)}"/>' for kind, d in sorted(paths.items()))
    lines = _grid(height, width)
    box = f'viewBox="0 0 {width} {height}" style="aspect-ratio:{width}/{max(height, width / 12):.4g}"'
    said = 'role="img" preserveAspectRatio="none" aria-label="tiles of the mask"'
    return f'<svg class="tiles" {box} {said}>{drawn}{lines}</svg>'


def _grid(height: int, width: int) -> str:
    """Lines between cells."""
    across = "".join(f"M0 {y}h{width}" for y in range(1, height))
    down = "".join(f"M{x} 0v{height}" for x in range(1, width))
    return f'<path class="grid" d="{across}{down}"/>'


def _cells(classes: np.ndarray) -> np.ndarray:
    """At most MAX_CELLS on a side: a cell of several tiles has their class, and is partial where they differ."""
    for axis in (0, 1):
        step = -(-classes.shape[axis] // MAX_CELLS)
        if step > 1:
            starts = np.arange(0, classes.shape[axis], step)
            low, high = (fold.reduceat(classes, starts, axis=axis) for fold in (np.minimum, np.maximum))
            classes = np.where(low == high, low, np.where(high == UNKNOWN, UNKNOWN, PARTIAL))
    return classes

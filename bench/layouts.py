"""Attention whose queries, keys and values lie in memory in many ways, on one GPU: onepass beside torch.compile.

`python bench/layouts.py --out FILE [--gradients] [--only channels padded]`. All programs have the same mathematics:
4 sequences of 1024 elements, 16 heads of 64, bfloat16. Only the strides differ: packed tensors, other orders of dims,
slices that begin at an odd element, strides of two and three, dims of stride 0. Columns are those of
bench/never_slower.py. With `--gradients` a call is a step: forward, and backward to the tensor in memory.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from torch import Tensor

from bench.never_slower import attend, drawn, measure

BATCH, HEADS, LENGTH, WIDTH = 4, 16, 1024, 64
SIZES = {"b": BATCH, "h": HEADS, "n": LENGTH, "d": WIDTH}
Views = Callable[..., Sequence[Tensor]]


def in_order(dims: str) -> Tensor:
    """A tensor of batch, heads, elements and width that lies in memory in the order of `dims`."""
    return drawn(*(SIZES[dim] for dim in dims))


def viewed(dims: str) -> Callable[[Tensor], Tensor]:
    return lambda x: x.permute(*(dims.index(dim) for dim in "bhnd"))


def three(dims: str) -> tuple[Views, list[Tensor]]:
    """Three tensors whose dims lie in the given order."""
    return lambda *given: [viewed(dims)(x) for x in given], [in_order(dims) for _ in range(3)]


def packed(dims: str) -> tuple[Views, list[Tensor]]:
    """One tensor that holds all three, by its dim of size three, 'p'."""
    place, rest = dims.index("p"), dims.replace("p", "")
    tensor = drawn(*({**SIZES, "p": 3}[dim] for dim in dims))
    return lambda x: [viewed(rest)(part) for part in x.unbind(place)], [tensor]


def sliced(*sizes: int, at: tuple[slice, ...]) -> tuple[Views, list[Tensor]]:
    """Slices of three larger tensors."""
    return lambda *given: [x[at] for x in given], [drawn(*sizes) for _ in range(3)]


EVERYTHING = slice(None)

LAYOUTS: dict[str, Callable[[], tuple[Views, list[Tensor]]]] = {
    "contiguous": lambda: three("bhnd"),
    "elements before heads": lambda: three("bnhd"),
    "elements first": lambda: three("nbhd"),
    "heads first": lambda: three("hbnd"),
    "width before elements": lambda: three("bhdn"),
    "width before heads": lambda: three("bndh"),
    "batch last": lambda: three("hndb"),
    "packed first": lambda: packed("pbhnd"),
    "packed before heads": lambda: packed("bnphd"),
    "packed within heads": lambda: packed("bnhpd"),
    "packed last": lambda: packed("bhndp"),
    "packed last, elements before heads": lambda: packed("bnhdp"),
    "packed channels of an image": lambda: packed("bphdn"),
    "packed channels within heads": lambda: packed("bhpdn"),
    "every second head": lambda: sliced(BATCH, 2 * HEADS, LENGTH, WIDTH, at=(EVERYTHING, slice(None, None, 2))),
    "every second element": lambda: sliced(
        BATCH, HEADS, 2 * LENGTH, WIDTH, at=(EVERYTHING, EVERYTHING, slice(None, None, 2))
    ),
    "every second number": lambda: sliced(BATCH, HEADS, LENGTH, 2 * WIDTH, at=(..., slice(None, None, 2))),
    "padded width": lambda: sliced(BATCH, HEADS, LENGTH, 80, at=(..., slice(64))),
    "odd row stride": lambda: sliced(BATCH, HEADS, LENGTH, 65, at=(..., slice(64))),
    "from an odd element": lambda: sliced(BATCH, HEADS, LENGTH, 72, at=(..., slice(1, 65))),
    "without its first element": lambda: sliced(
        BATCH, HEADS, LENGTH + 1, WIDTH, at=(EVERYTHING, EVERYTHING, slice(1, None))
    ),
    "keys of one head": lambda: (
        lambda q, k, v: [q, k.expand(-1, HEADS, -1, -1), v.expand(-1, HEADS, -1, -1)],
        [in_order("bhnd"), *(drawn(BATCH, 1, LENGTH, WIDTH) for _ in range(2))],
    ),
    "keys of one sequence": lambda: (
        lambda q, k, v: [q, k.expand(BATCH, -1, -1, -1), v.expand(BATCH, -1, -1, -1)],
        [in_order("bhnd"), *(drawn(1, HEADS, LENGTH, WIDTH) for _ in range(2))],
    ),
    "keys by columns": lambda: (lambda q, k, v: [q, k.mT, v], [in_order("bhnd"), in_order("bhdn"), in_order("bhnd")]),
}


def make(name: str) -> tuple[Callable, list[Tensor]]:
    """The program of a layout and its inputs."""
    views, given = LAYOUTS[name]()
    return lambda *inputs: attend(*views(*inputs)), given


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="a file for the rows, as comma-separated values")
    parser.add_argument("--only", nargs="*", default=[""], help="layouts whose name contains one of these")
    parser.add_argument("--gradients", action="store_true", help="a call is forward and backward")
    asked = parser.parse_args()
    names = [name for name in LAYOUTS if any(part in name for part in asked.only)]
    measure({name: partial(make, name) for name in names}, asked.out, gradients=asked.gradients)


if __name__ == "__main__":
    main()

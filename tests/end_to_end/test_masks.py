"""Masks in plain PyTorch, from the graph to both executors: right, one kernel, with the ranges that skip tiles."""

import math

import pytest
import torch

from onepass.compiler.optimize import optimize
from onepass.graph.trace import program_of
from onepass.lowering.plan.kernel_config import TritonConfig
from onepass.lowering.tiled import executor
from onepass.lowering.tiled.executor import run_tiled
from onepass.lowering.triton import launch
from onepass.lowering.triton.launch import Launcher
from onepass.translate.translate import translate
from tests.support.attention_terms import error

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
ROWS, COLUMNS, WIDTH = 72, 96, 16


def clamped_neighbours(i, j, _):
    """NATTEN over a grid of 8 x 12, its window moved inwards at the borders."""
    row, column = (i // 12).clamp(1, 6), (i % 12).clamp(2, 9)
    return ((j // 12 - row).abs() <= 1) & ((j % 12 - column).abs() <= 2)


def some_blocks(i, j, drawn):
    """BigBird: a window, global rows and columns, and blocks drawn at random."""
    return ((i - j).abs() <= 5) | (j < 4) | (i < 4) | drawn[i // 8, j // 8]


# name: mask of (i, j, data), data, (number of ranges, all exact, has a block map)
MASKS = {
    "prefix": (lambda i, j, _: (j <= i) | (j < 20), None, (1, True, False)),
    "shifted causal": (lambda i, j, _: j <= i + (COLUMNS - ROWS), None, (1, True, False)),
    "window both ways": (lambda i, j, _: (i - j).abs() <= 9, None, (1, True, False)),
    "dilated window": (lambda i, j, _: ((i - j).abs() <= 20) & ((i - j) % 3 == 0), None, (1, False, False)),
    "block local": (lambda i, j, _: i // 16 == j // 16, None, (1, True, False)),
    "strided keys": (lambda i, j, _: 2 * j <= 3 * i, None, (1, True, False)),
    "window and globals": (lambda i, j, _: ((i - j).abs() <= 8) | (j < 4) | (i < 4), None, (2, True, False)),
    "window and sink": (lambda i, j, _: (j <= i) & ((i - j < 12) | (j < 4)), None, (2, True, False)),
    "all but a window": (lambda i, j, _: ~((i - j).abs() <= 9) | (i == j), None, (3, True, False)),
    "neighbours in two dims": (clamped_neighbours, None, (1, False, False)),
    "lengths": (lambda i, j, n: j < n[:, None, None, None], torch.tensor([COLUMNS, 17]), (1, True, False)),
    "documents": (
        lambda i, j, ids: ids[:, None, :ROWS, None] == ids[:, None, None, :],
        torch.arange(COLUMNS).expand(2, COLUMNS) // torch.tensor([[20], [33]]),
        (1, False, True),
    ),
    "causal documents by index": (
        lambda i, j, ids: (j <= i) & (ids[i] == ids[j]),
        torch.arange(COLUMNS) // 25,
        (1, False, True),
    ),
    "starts of sequences": (
        lambda i, j, start: (start[i] <= j) & (j <= i),
        torch.arange(COLUMNS) // 30 * 30,
        (1, False, True),
    ),
    "padding": (
        lambda i, j, keep: keep[:, None, None, :],
        torch.arange(COLUMNS) < torch.tensor([[50], [9]]),
        (1, False, True),
    ),
    "blocks at random": (some_blocks, torch.rand(9, 12, generator=torch.Generator().manual_seed(0)) < 0.1, None),
    "tree": (
        lambda i, j, ancestors: ancestors,
        (torch.arange(COLUMNS) % (torch.arange(ROWS)[:, None] // 6 + 1) == 0) & (torch.arange(COLUMNS) < 60),
        (1, False, True),
    ),
}  # fmt: skip


@pytest.fixture
def small_tiles(monkeypatch):
    limits = (("FIRST_TILE_ROWS", 16), ("FIRST_TILE_COLUMNS", 16), ("MAX_ELEMENTS_ON_A_CPU", 2000))
    for name, value in limits:
        monkeypatch.setattr(executor, name, value)
    monkeypatch.setattr(launch, "pays", lambda *_: True)


def attention(mask):
    def function(q, k, v, *data):
        i, j = torch.arange(ROWS)[:, None], torch.arange(COLUMNS)
        scores = q @ k.mT / math.sqrt(WIDTH)
        return torch.softmax(scores.masked_fill(~mask(i, j, *(data or [None])), -math.inf), -1) @ v

    return function


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", MASKS)
@pytest.mark.usefixtures("small_tiles")
def test_masks(name):
    mask, data, facts = MASKS[name]
    torch.manual_seed(0)
    inputs = [torch.randn(2, 2, n, WIDTH) for n in (ROWS, COLUMNS, COLUMNS)] + ([] if data is None else [data])
    function = attention(mask)
    program = program_of(function, *inputs)
    captured = translate(program)
    plan = optimize(captured.term, captured.output, captured.order).plan
    (loop,) = (loop for kernel in plan.kernels for loop in kernel.loops)
    if facts is not None:
        assert (len(loop.ranges), all(r.exact for r in loop.ranges), loop.map is not None) == facts, loop.ranges
    named = dict(zip([entry.name for entry in program.inputs], inputs, strict=True))
    exact = function(*(x.double() if x.is_floating_point() else x for x in inputs))
    on_device = {name: x.to(DEVICE) for name, x in named.items()}
    for found in (run_tiled(plan, named), Launcher(plan, TritonConfig(16, 16, 4, 1))(on_device).cpu()):
        assert error(found, exact) <= 2 * error(function(*inputs), exact) + 1e-6

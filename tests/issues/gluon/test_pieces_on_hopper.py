"""With equal bits a prefill ran as plain Triton, which took 1.9 times as long. It has Hopper's form now: tiles in the
order of their keys, and states of pieces that join totals as Triton's do. On a GPU, tests/gpu/test_equal_bits.py
compares the bits.
"""

import math
from dataclasses import replace

import pytest
import torch

from onepass.compiler.optimize import optimize_all
from onepass.compiler.verified_kernels import checks
from onepass.graph.trace import program_of
from onepass.lowering.gluon.launch import GluonLauncher
from onepass.lowering.hopper.kernel_form import bind
from onepass.lowering.launch.triton_compat import gluon_missing
from onepass.lowering.plan.kernel_config import TritonConfig
from onepass.lowering.schedule.choose_config import choose_in_pieces
from onepass.lowering.triton.launch_texts import launch_texts
from onepass.proofs.texts.check import differences
from onepass.translate.translate import translate
from tests.issues.gluon.test_rows_by_pointers import batch, packed, windowed
from tests.support.on_hopper import pretend_hopper

pytestmark = pytest.mark.skipif(gluon_missing() is not None, reason="needs Gluon")
PIECE = 128


def full(q, k, v):
    return (q @ k.mT / 4).softmax(-1) @ v


def causal(q, k, v):
    i, j = (torch.arange(x.shape[2]) for x in (q, k))
    seen = j <= (k.shape[2] - q.shape[2] + i)[:, None]
    return (q @ k.mT / 4).masked_fill(~seen, -math.inf).softmax(-1) @ v


def window(q, k, v):
    i, j = (torch.arange(x.shape[2]) for x in (q, k))
    behind = (k.shape[2] - q.shape[2] + i)[:, None] - j
    return (3 * torch.tanh(q @ k.mT / 12)).masked_fill((behind < 0) | (behind > 70), -math.inf).softmax(-1) @ v


def by_a_third(q, k, v):
    i, j = (torch.arange(x.shape[2]) for x in (q, k))
    return (q @ k.mT / 3).masked_fill(j > i[:, None], -math.inf).softmax(-1) @ v


def least_by_a_third(q, k, v):
    i, j = (torch.arange(x.shape[2]) for x in (q, k))
    return (q @ k.mT / 3).masked_fill(j > i[:, None], torch.finfo(q.dtype).min).softmax(-1) @ v


def without_keys(q, k, v):
    i, j = (torch.arange(x.shape[2]) for x in (q, k))
    return (q @ k.mT / 4).masked_fill(j > i[:, None] - 3, torch.finfo(q.dtype).min).softmax(-1) @ v


def with_logarithm(q, k, v):
    scores = (q @ k.mT).float() / 4
    return scores.softmax(-1).to(q.dtype) @ v, scores.logsumexp(-1)


def biased(q, k, v, bias):
    return (q @ k.mT / 4 + bias).softmax(-1) @ v


def chosen(function, inputs, tile):
    (kernel,) = optimize_all(translate(program_of(function, *inputs)).results, invariant=True).plan.kernels
    return choose_in_pieces(binding := bind(kernel), binding.overlays, tile)


def texts_of(function, inputs, monkeypatch, piece=PIECE, tile=64):
    pretend_hopper(monkeypatch)
    program = program_of(function, *inputs)
    plan = optimize_all(translate(program).results, invariant=True).plan
    plan = replace(plan, piece=piece, factors_apart=not program.numbers_by_place)
    launcher = GluonLauncher(plan, TritonConfig(64, tile, 4, 2))
    texts = launch_texts(launcher, {e.name: x for e, x in zip(program.inputs, inputs, strict=True)}, {})
    return texts, launcher.refusals


def inputs_of(rows=200, keys=500, width=16):
    torch.manual_seed(0)
    return [torch.randn(1, 2, n, width).bfloat16() for n in (rows, keys, keys)]


@pytest.mark.parametrize("tile", [64, 128])
@pytest.mark.parametrize("function", [full, causal, window, without_keys, with_logarithm])
def test_pieces_are_read_in_order_and_join_totals(function, tile, monkeypatch):
    texts, refused = texts_of(function, inputs_of(), monkeypatch, tile=tile)
    assert not refused
    ((_, found),) = checks(texts, 2**60, 1)
    text = found.calls[0].text
    assert f"begins = tile % {PIECE // tile} == 0" in text and "_end - 1 - t" not in text and "gl.fma(" in text
    assert text.count("row_sum_in_pairs(weight") == 2 and "partial_sum(weight" not in text
    # results that are more than ratios of weights have the largest score for a scale
    assert ("gl.maximum(before" in text) == (function is with_logarithm)
    assert differences(found) == []


@pytest.mark.parametrize("function, apart", [(by_a_third, True), (least_by_a_third, False)])
def test_a_factor_is_one_of_the_multiply_add_where_masks_only_hide(function, apart, monkeypatch):
    """It took a multiplication of each score, 0.05 of a prefill's time."""
    texts, refused = texts_of(function, inputs_of(), monkeypatch)
    assert not refused
    ((_, found),) = checks(texts, 2**60, 1)
    text = found.calls[0].text
    assert ("ROWS) * 0.3333" in text) == ("score * 0.3333" not in text) == apart and differences(found) == []


@pytest.mark.parametrize("function", [packed, windowed])
def test_packed_queries_and_pages(function, monkeypatch):
    texts, refused = texts_of(function, batch(), monkeypatch)
    assert not refused
    ((_, found),) = checks(texts, 2**60, 1)
    assert "begins = tile" in found.calls[0].text and differences(found) == []


@pytest.mark.parametrize(("width", "consumers", "stages"), [(16, 2, 4), (64, 2, 2), (128, None, None)])
def test_tiles_of_a_bias_fit_beside_totals_or_plain_triton_runs(width, consumers, stages, monkeypatch):
    """The settings were those without a bias, which took 288 KiB of shared memory: the kernel could not be launched."""
    inputs = [*inputs_of(512, 512, width), torch.randn(1, 2, 512, 512).bfloat16()]
    texts, refused = texts_of(biased, inputs, monkeypatch, tile=128)
    if consumers is None:
        assert refused["kernel0"] == "its tiles do not fit in shared memory"
        return
    assert not refused
    ((_, found),) = checks(texts, 2**60, 1)
    config = chosen(biased, inputs, 128)
    assert (config.consumers, config.stages) == (consumers, stages)
    assert differences(found) == []


def test_what_has_no_such_form_runs_as_triton_would(monkeypatch):
    inputs = [torch.randn(1, 2, n, 192).bfloat16() for n in (100, 300, 300)]
    _, refused = texts_of(full, inputs, monkeypatch)
    assert "more than 128 columns" in refused["kernel0"]

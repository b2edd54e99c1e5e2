"""Queries of packed sequences, q[starts[b] + i], ran as plain Triton on Hopper: a tensor map describes no row whose
place is read from memory. Rows that none describes are now read by pointers, and their products are as before.
"""

import numpy as np
import pytest
import torch

from onepass.compiler.verified_kernels import checks
from onepass.lowering.hopper.config import HopperConfig
from onepass.lowering.hopper.kernel_form import bind
from onepass.lowering.launch.triton_compat import gluon_missing
from onepass.lowering.plan.kernel_config import TritonConfig
from onepass.lowering.triton.launch import Launcher
from onepass.lowering.triton.launch_texts import launch_texts
from onepass.proofs.texts.check import differences, run
from tests.proofs.texts.test_check import plan_of
from tests.support.on_hopper import hopper_texts, pretend_hopper

pytestmark = pytest.mark.skipif(gluon_missing() is not None, reason="needs Gluon")
TOKENS, KEYS, WIDTH, PAGE, ROWS = 200, 256, 16, 16, 128
SMALL = HopperConfig(consumers=2, loop_tile=64)


def attended(q, kc, vc, table, lengths, starts, window):
    """Sequence b has the tokens from starts[b] to starts[b + 1]; the last of them stands at its last key."""
    k, v = (c[table].flatten(1, 2).transpose(1, 2) for c in (kc, vc))
    i, own = torch.arange(ROWS), starts[1:] - starts[:-1]
    rows = q[(starts[:-1, None] + i).clamp(max=q.shape[0] - 1)].transpose(1, 2)
    age = ((lengths - own)[:, None] + i)[:, :, None] - torch.arange(k.shape[2])
    kept = (age >= 0) & (age < window) & (i < own[:, None])[:, :, None]
    return (rows @ k.mT / 4).masked_fill(~kept[:, None], -torch.inf).softmax(-1).nan_to_num(0) @ v


def packed(q, kc, vc, table, lengths, starts):
    return attended(q, kc, vc, table, lengths, starts, KEYS)


def windowed(q, kc, vc, table, lengths, starts):
    return attended(q, kc, vc, table, lengths, starts, 30)


def flipped(q, k, v):
    """Rows in reverse, which no tensor map describes."""
    return (q.flip(2) @ k.mT / 4).softmax(-1) @ v


def by_index(q, k, v, index):
    """Rows that a tensor chooses."""
    return (q[:, :, index] @ k.mT / 4).softmax(-1) @ v


def batch(width=WIDTH, first=(0, 0)):
    """first: entries of the table before these are no pages, since no window reaches them."""
    torch.manual_seed(0)
    q = torch.randn(TOKENS, 2, width).bfloat16()
    kc, vc = torch.randn(2, 12, PAGE, 2, width).bfloat16()
    table = torch.randint(-12, 12, (2, KEYS // PAGE))
    lengths, starts = torch.tensor([131, 256]), torch.tensor([0, 70, TOKENS - 10])
    number = torch.arange(KEYS // PAGE)
    table[(number * PAGE >= lengths[:, None]) | (number < torch.tensor(first)[:, None])] = 2**40
    return [q, kc, vc, table, lengths, starts]


def plain(width=WIDTH):
    torch.manual_seed(0)
    return [torch.randn(1, 2, n, width).bfloat16() for n in (130, 200, 200)]


def checked(function, inputs, monkeypatch, config=SMALL):
    pretend_hopper(monkeypatch)
    ((_, found),) = checks(hopper_texts(*plan_of(function, inputs), config), 2**60, 1)
    return found


@pytest.mark.parametrize("config", [SMALL, HopperConfig(consumers=1, loop_tile=128, stages=3)])
@pytest.mark.parametrize("width", [16, 80])
def test_packed_queries_are_read_by_pointers(config, width, monkeypatch):
    found = checked(packed, batch(width), monkeypatch, config)
    text = found.calls[0].text
    assert "q_map" not in text and "fence_async_shared()" in text and text.count("copy_in(kc_map") >= 4
    assert differences(found) == []


@pytest.mark.parametrize("config", [SMALL, HopperConfig(consumers=1, loop_tile=64, stages=3)])
def test_pages_that_no_window_reaches(config, monkeypatch):
    """The first query of sequence 0 stands at key 61 and sees the keys from 32 on; that of sequence 1 stands at 136."""
    assert differences(checked(windowed, batch(first=(2, 6)), monkeypatch, config)) == []


@pytest.mark.parametrize("function, first", [(packed, (0, 0)), (windowed, (2, 6))])
def test_plain_triton_reads_no_page_that_no_query_sees(function, first):
    """A tile's limits were those of its first and last row, though its last rows were another sequence's: pages behind
    a length stopped the kernel.
    """
    plan, tensors = plan_of(function, batch(first=first))
    texts = launch_texts(Launcher(plan, TritonConfig(32, 32, 4, 1, 1)), tensors, {})
    ((_, found),) = checks(texts, 2**60, 1)
    assert "device_assert" in found.calls[0].text and differences(found) == []


@pytest.mark.parametrize("function", [flipped, by_index])
def test_rows_that_no_tensor_map_describes(function, monkeypatch):
    inputs = [*plain(), *([torch.randint(0, 130, (100,))] if function is by_index else [])]
    assert differences(checked(function, inputs, monkeypatch)) == []


@pytest.mark.parametrize("wild", [130, -131, 2**40])
def test_a_row_that_is_none_becomes_nan(wild, monkeypatch):
    index = torch.randint(0, 130, (100,))
    index[7] = wild
    found = checked(by_index, [*plain(), index], monkeypatch)
    assert "stop_where" not in found.calls[0].text
    lost = np.isnan(np.asarray(run(found)["output"].data.shadow).reshape(2, 100, WIDTH))
    assert lost[:, 7].all() and lost.sum() == 2 * WIDTH


def test_rows_of_bytes_are_left_to_plain_triton():
    q, k, v = (x.to(torch.float8_e4m3fn) for x in plain(64))
    of_bytes = lambda q, k, v, index: ((q[:, :, index].float() @ k.float().mT).softmax(-1) @ v.float()).bfloat16()
    plan, _ = plan_of(of_bytes, [q, k, v, torch.randint(0, 130, (100,))])
    assert "an index of" in bind(plan.kernels[-1])


def test_queries_and_heads_as_rows_of_wide_latents(monkeypatch):
    """16 heads of 4 queries read one latent. The sum over its columns is cut, so rows are read from column 512 on, too.
    """
    def latents(q, c):
        return (q @ c[:, None].mT / 24).softmax(-1) @ c[:, None, :, :512]

    pretend_hopper(monkeypatch)
    given = [torch.randn(1, 16, 4, 528).bfloat16(), torch.randn(1, 100, 528).bfloat16()]
    ((_, found),) = checks(hopper_texts(*plan_of(latents, given)), 2**60, 1)
    assert found.calls[0].text.count("warpgroup_mma(weights") == 2 and differences(found) == []

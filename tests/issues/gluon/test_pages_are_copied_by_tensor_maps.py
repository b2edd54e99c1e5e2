"""Keys in pages ran as plain Triton on Hopper: a tensor map copied no tile whose place is read from memory. A tile is
now copied page by page, so that pages of 16 keys have tiles of 128, too. An entry behind a length may be anything; one
that counts and is no page stops the kernel.
"""

from dataclasses import replace

import pytest
import torch

from onepass.compiler.verified_kernels import checks
from onepass.lowering.gluon.launch import choice_of
from onepass.lowering.hopper.config import HopperConfig
from onepass.lowering.hopper.kernel_form import bind
from onepass.lowering.launch.triton_compat import gluon_missing
from onepass.lowering.plan.kernel_config import TritonConfig
from onepass.lowering.triton.launch import Launcher
from onepass.lowering.triton.launch_texts import launch_texts
from onepass.proofs.kernels.memory import KernelFault
from onepass.proofs.texts.check import differences, run
from tests.proofs.texts.test_check import plan_of
from tests.support.on_hopper import hopper_texts, pretend_hopper

pytestmark = pytest.mark.skipif(gluon_missing() is not None, reason="needs Gluon")
PAGES, KEYS, WIDTH = 12, 256, 16
SMALL = HopperConfig(consumers=2, loop_tile=64)


def paged(q, kc, vc, table, lengths):
    """Causal: the last query of a sequence stands at its last key."""
    k, v = (c[table].flatten(1, 2).transpose(1, 2) for c in (kc, vc))
    j = torch.arange(k.shape[2]) - (lengths[:, None, None, None] - q.shape[2])
    return (q @ k.mT / 4).masked_fill(j > torch.arange(q.shape[2])[:, None], -torch.inf).softmax(-1) @ v


def grouped(q, kc, vc, table, lengths):
    """Two heads of queries share a head of keys, whose number is a quotient, too."""
    k, v = (c[table].flatten(1, 2).transpose(1, 2)[:, :1].repeat_interleave(2, 1) for c in (kc, vc))
    j = torch.arange(k.shape[2]) - (lengths[:, None, None, None] - q.shape[2])
    return (q @ k.mT / 4).masked_fill(j > torch.arange(q.shape[2])[:, None], -torch.inf).softmax(-1) @ v


def windowed(q, kc, vc, table, lengths):
    """The keys of a window before each length, the same for all queries."""
    k, v = (c[table].flatten(1, 2).transpose(1, 2) for c in (kc, vc))
    ago = lengths[:, None, None, None] - torch.arange(k.shape[2])
    return (q @ k.mT / 4).masked_fill((ago < 1) | (ago > 90), -torch.inf).softmax(-1).nan_to_num(0) @ v


def given(page, lengths, fill=2**40, rows=100):
    """fill: what the table holds behind the lengths."""
    torch.manual_seed(0)
    q = torch.randn(len(lengths), 2, rows, WIDTH).bfloat16()
    kc, vc = torch.randn(2, PAGES, page, 2, WIDTH).bfloat16()
    table = torch.randint(-PAGES, PAGES, (len(lengths), KEYS // page))
    lengths = torch.tensor(lengths)
    table[torch.arange(KEYS // page) * page >= lengths[:, None]] = fill
    return [q, kc, vc, table, lengths]


def checked(function, inputs, monkeypatch, config=SMALL):
    pretend_hopper(monkeypatch)
    ((_, found),) = checks(hopper_texts(*plan_of(function, inputs), config), 2**60, 1)
    assert "kc_map, [gl.cast(where" in found.calls[0].text and "gl.load(kc" not in found.calls[0].text
    return found


@pytest.mark.parametrize("function", [paged, grouped, windowed])
@pytest.mark.parametrize("page, config", [(64, SMALL), (128, HopperConfig(consumers=1, loop_tile=64, stages=3)),
                                          (128, HopperConfig(consumers=2, loop_tile=128)), (16, SMALL),
                                          (32, HopperConfig(consumers=2, loop_tile=128)),
                                          (64, HopperConfig(consumers=1, loop_tile=128, stages=3))])  # fmt: skip
def test_tiles_are_copied_from_their_pages(function, page, config, monkeypatch):
    assert differences(checked(function, given(page, (256, 131)), monkeypatch, config)) == []


@pytest.mark.parametrize("page, tile", [(64, 64), (32, 64), (16, 128)])
@pytest.mark.parametrize("lengths", [(0, 64), (1, 65), (63, 256)])
@pytest.mark.parametrize("fill", [2**40, -(2**40), 2**31 + 3, PAGES])
def test_what_stands_behind_a_length_is_no_page(page, tile, lengths, fill, monkeypatch):
    config = replace(SMALL, loop_tile=tile)
    assert differences(checked(windowed, given(page, lengths, fill), monkeypatch, config)) == []


@pytest.mark.parametrize("page, tile", [(64, 64), (16, 128)])
def test_rows_that_keep_nothing_read_no_page(page, tile, monkeypatch):
    """A limit on rows and one on keys: their product was taken as what each allows at its own row."""
    inputs = given(page, (50, 100))
    assert differences(checked(before_a_length, inputs, monkeypatch, replace(SMALL, loop_tile=tile))) == []


def test_a_page_that_no_power_of_two_divides(monkeypatch):
    """A tile of 64 columns is four copies of 16, and the last tile reaches beyond the keys."""
    found = checked(paged, given(48, (240, 131)), monkeypatch)
    assert differences(found) == [] and found.calls[0].text.count("copy_in(kc_map") == 4


@pytest.mark.parametrize("wild", [PAGES, -PAGES - 1, 2**32 + 1])
def test_a_page_that_is_none_stops_the_kernel(wild, monkeypatch):
    inputs = given(64, (256, 131))
    inputs[3][1, 2] = wild
    with pytest.raises(KernelFault, match="out of range"):
        run(checked(paged, inputs, monkeypatch))


def with_a_mask_of_its_own(q, kc, vc, table, lengths):
    """A part of the guard that no limit says: the entries of pages that it drops may be anything."""
    k, v = (c[table].flatten(1, 2).transpose(1, 2) for c in (kc, vc))
    known = (table >= 0).repeat_interleave(64, 1)[:, None, None]
    keep = (torch.arange(k.shape[2]) < lengths[:, None, None, None]) & known
    return (q @ k.mT / 4).masked_fill(~keep, -torch.inf).softmax(-1) @ v


def striped(q, kc, vc, table, lengths):
    k, v = (c[table].flatten(1, 2).transpose(1, 2) for c in (kc, vc))
    j = torch.arange(k.shape[2])
    keep = (j < lengths[:, None, None, None]) & (j % 3 == 0)
    return (q @ k.mT / 4).masked_fill(~keep, -torch.inf).softmax(-1) @ v


def before_a_length(q, kc, vc, table, lengths):
    """The first query stands at key 20, and only so many queries count that the last one stands at the last key."""
    k, v = (c[table].flatten(1, 2).transpose(1, 2) for c in (kc, vc))
    i, j = torch.arange(q.shape[2])[:, None], torch.arange(k.shape[2])
    keep = (j <= i + 20) & (i < lengths[:, None, None, None] - 20)
    return (q @ k.mT / 4).masked_fill(~keep, -torch.inf).softmax(-1).nan_to_num(0) @ v


def apart(q, kc, vc, table, lengths):
    """Row i keeps 20 keys from 70 · i on: no row keeps those between."""
    k, v = (c[table].flatten(1, 2).transpose(1, 2) for c in (kc, vc))
    j, begin = torch.arange(k.shape[2]), 70 * torch.arange(q.shape[2])[:, None]
    keep = (j >= begin) & (j < begin + 20) & (j < lengths[:, None, None, None])
    return (q @ k.mT / 4).masked_fill(~keep, -torch.inf).softmax(-1).nan_to_num(0) @ v


@pytest.mark.parametrize(
    "function, page, said",
    [
        (apart, 64, "ranges of neighbouring rows may lie apart"),
        (paged, 8, "16 columns, the fewest that are copied at once, are not in one page of 8"),
        (with_a_mask_of_its_own, 64, "a list of tiles names some that no element keeps"),
        (striped, 64, "its guard may keep no element"),
    ],
)
def test_what_is_not_copied_runs_as_plain_triton(function, page, said, monkeypatch):
    pretend_hopper(monkeypatch)
    with pytest.raises(AssertionError, match=said):
        hopper_texts(*plan_of(function, given(page, (256, 131), fill=-1)), SMALL)


@pytest.mark.parametrize("page", [16, 48, 64, 128, 256])
def test_tiles_are_those_of_contiguous_keys(page):
    q = torch.randn(1, 2, 2048, 128).bfloat16()
    kc, vc = torch.randn(2, 32, page, 2, 128).bfloat16()
    plan, _ = plan_of(paged, [q, kc, vc, torch.arange(32)[None], torch.tensor([32 * page])])
    choice = choice_of(bind(plan.kernels[0]), {})
    assert (choice.config.loop_tile, choice.config.stages) == (128, 2)


def kept_by(rows, q, kc, vc, table, lengths, own):
    """Causal, with what `rows` says of rows i, the age of a key, and own[b]."""
    k, v = (c[table].flatten(1, 2).transpose(1, 2) for c in (kc, vc))
    i = torch.arange(q.shape[2])[:, None]
    age = (lengths[:, None, None] - q.shape[2] + i) - torch.arange(k.shape[2])
    kept = (age >= 0) & rows(i, age, own[:, None, None])
    return (q @ k.mT / 4).masked_fill(~kept[:, None], -torch.inf).softmax(-1).nan_to_num(0) @ v


def padded_before(*given):
    """The last own[b] rows are a sequence's, and none of them sees what the first row would."""
    return kept_by(lambda i, age, own: (i >= 100 - own) & (age < 30), *given)


def windows_of_sequences(*given):
    return kept_by(lambda i, age, own: age < own, *given)


def one_row(*given):
    return kept_by(lambda i, age, own: (i == 100 - own) & (age < 30), *given)


def of_sequences(reached):
    """own[b] is 20 and 0. reached: the first page of sequence 0 that a row reaches; none of sequence 1 is reached."""
    q, kc, vc, table, lengths = given(16, (256, 131))
    table[0, :reached], table[1] = 2**40, 2**40
    return [q, kc, vc, table, lengths, torch.tensor([20, 0])]


WITH_OWN = [(padded_before, (236 - 29) // 16), (windows_of_sequences, (156 - 19) // 16), (one_row, (236 - 29) // 16)]


@pytest.mark.parametrize("function, reached", WITH_OWN)
def test_limits_that_move_together_may_leave_pages_between_them(function, reached, monkeypatch):
    """A block of rows began where its first row would: there no row kept anything, and the kernel stopped."""
    pretend_hopper(monkeypatch)
    with pytest.raises(AssertionError, match="limits that move together"):
        hopper_texts(*plan_of(function, of_sequences(reached)), SMALL)


@pytest.mark.parametrize("function, reached", WITH_OWN)
def test_plain_triton_reads_no_page_between_them(function, reached):
    plan, tensors = plan_of(function, of_sequences(reached))
    texts = launch_texts(Launcher(plan, TritonConfig(32, 32, 4, 1, 1)), tensors, {})
    assert [differences(found) for _, found in checks(texts, 2**60, 1)] == [[]]


def test_a_tensor_has_no_name_of_a_function_that_copies(monkeypatch):
    """Inside the kernel it hid the function, and Triton could not compile that."""

    def named(q, kc, vc, producer0, lengths):
        return paged(q, kc, vc, producer0, lengths)

    found = checked(named, given(16, (256, 131)), monkeypatch)
    assert "def producer0(" in found.calls[0].text and "producer0" not in found.calls[0].pointers
    assert differences(found) == []

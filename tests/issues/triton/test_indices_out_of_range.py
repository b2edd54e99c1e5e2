"""An index out of range, where a tensor holds it, gave other numbers where eager raises. Now the tiled executor raises,
and a kernel stops behind its loop: inside, the nearest place is read, since a loop that may stop has no copies under
way. Of what a guard drops nothing is asked.
"""

import re
from dataclasses import replace
from itertools import product

import pytest
import torch

from onepass.compiler.verified_kernels import checks
from onepass.lowering.launch.triton_compat import compiler_options
from onepass.lowering.plan.kernel_config import TritonConfig
from onepass.lowering.plan.launch_facts import Facts
from onepass.lowering.triton.kernel import emit
from onepass.lowering.triton.launch import Launcher
from onepass.lowering.triton.launch_texts import launch_texts
from onepass.proofs.texts.check import Reference, differences
from onepass.proofs.texts.mutants import mutants
from tests.issues.fusion.test_pages_read_in_place import compiled
from tests.lowering.planning.test_inline_producers import planned
from tests.proofs.texts.test_check import plan_of
from tests.support.gluon_ahead_of_time import source_of
from tests.support.pages import HEADS, PAGES, ROW, SLOTS, WIDTH, batch, by_index, by_take_along_dim, hostile, plain

pytestmark = pytest.mark.usefixtures("fresh")
WILD = (PAGES, -PAGES - 1, 2**31 - 1, -(2**31))
ENTRIES = 50


def of_pairs(q, k, v, table, index):
    """A bias that a table gives for each pair."""
    return (q @ k.mT / 4 + table[index]).softmax(-1) @ v


def of_rows(q, k, v, table, index):
    """A factor that a table gives for each row."""
    return (q @ k.mT / 4 * table[index[:, 0]][:, None]).softmax(-1) @ v


def pairs(wild: int | None = None):
    """Inputs of these programs, the last pair's index out of range."""
    q, k, v = torch.randn(3, 2, 20, 16)
    index = torch.randint(-ENTRIES, ENTRIES, (20, 20))
    if wild is not None:
        index[19, 19] = index[19, 0] = wild
    return q, k, v, torch.randn(ENTRIES), index


def with_entry(x, wild):
    """The batch with a wild page among those that a sequence reads: its last one, of which one slot is read."""
    table, lengths = x.table.clone(), x.lengths.clone()
    lengths[0] = 2 * SLOTS + 1
    table[0, 2] = wild
    return replace(x, table=table, lengths=lengths)


@pytest.mark.parametrize("rows", [1, 20])
@pytest.mark.parametrize("wild", WILD)
@pytest.mark.parametrize("function", [by_index, by_take_along_dim])
def test_the_tiled_executor_raises(function, wild, rows):
    inputs = plain(with_entry(batch(rows, 8 if rows == 1 else 2), wild))
    with torch.no_grad(), pytest.raises(IndexError, match="out of range"):
        compiled(function, invariant=True)(*inputs)


@pytest.mark.parametrize("wild", [ENTRIES, -ENTRIES - 1])
@pytest.mark.parametrize("function", [of_pairs, of_rows])
def test_a_table_by_pair_and_by_row(function, wild):
    run = compiled(function, "tiled")
    with torch.no_grad():
        run(*pairs())
        for _ in range(2):
            with pytest.raises(IndexError):
                run(*pairs(wild))
        right = pairs()
        torch.testing.assert_close(run(*right), function(*right), atol=1e-5, rtol=1e-5)


def test_a_loop_notes_it_and_the_kernel_stops_behind():
    plan = planned(by_index, plain(batch(20, 2)))
    text = emit(plan.kernels[0], plan).text
    loops, behind = text.rsplit("    for ", 1)
    full = loops.split("    for ")[1]
    assert "device_assert" not in loops and "device_assert(~wild" in behind
    assert "wild = wild |" in full and "wild = wild |" in behind
    assert "mask=" not in full, "a full tile's loads are of the nearest places, and are not masked"


def test_what_is_no_index_from_memory_is_not_asserted():
    plan = planned(lambda q, k, v: (q @ k.mT / 4).softmax(-1) @ v, pairs()[:3])
    assert "assert" not in emit(plan.kernels[0], plan).text


def said(function, inputs, config=None):
    """What the kernels' texts do otherwise than their terms, over exact numbers."""
    plan, tensors = plan_of(function, inputs)
    texts = launch_texts(Launcher(plan, config or TritonConfig(16, 16, 4, 1, 1)), tensors, {})
    return [said for one, checked in checks(texts, 2**60) for said in differences(checked)]


@pytest.mark.parametrize("function", [of_pairs, of_rows])
@pytest.mark.parametrize("wild", [ENTRIES, -ENTRIES - 1])
def test_the_text_stops(function, wild):
    assert not said(function, pairs())
    assert any("out of range" in one for one in said(function, pairs(wild)))


@pytest.mark.parametrize(("rows", "heads"), [(1, 8), (20, 2)])
@pytest.mark.parametrize("wild", WILD[:2])
def test_the_text_stops_at_a_page_of_one_read_slot(wild, rows, heads):
    x = batch(rows, heads)
    assert not said(by_index, plain(x))
    assert any("out of range" in one for one in said(by_index, plain(with_entry(x, wild))))


@pytest.mark.parametrize(("rows", "heads"), [(1, 8), (20, 2)])
def test_the_text_does_not_stop_behind_a_length(rows, heads):
    lengths = (1, SLOTS, 2 * SLOTS + 1, 3) if rows == 1 else (20, 24, 33, 21)
    wild, _ = hostile(batch(rows, heads, lengths), negative=True)
    assert not any("out of range" in one for one in said(by_index, plain(wild)))


def test_a_sequence_without_keys_needs_no_page():
    table = torch.full((2, ROW), 10**9)
    q, (kc, vc) = torch.randn(2, 8, 1, WIDTH), torch.randn(2, PAGES, SLOTS, HEADS, WIDTH)
    found = said(by_index, (q, kc, vc, table, torch.zeros(2, dtype=torch.int64)))
    assert not any("out of range" in one for one in found)


OF_CHECKS = ("wild", "device_assert", "maximum_", "minimum_", "le_j", "sub =")
EQUAL = {  # of a mutant's description; what it computes instead is the same
    r"mask dropped|one condition: .*; in: [kv]c_tile": "what is read besides is there, and meets a weight of 0",
    r"one condition: .*~le_j_3": "a dropped entry of the table is read as 0, which is a page",
    r"mask dropped: .*; in: table_tile": "the table has an entry there",
}


def launches(inputs):
    """What runs of the kernel for these inputs."""
    plan, tensors = plan_of(by_index, inputs)
    texts = launch_texts(Launcher(plan, TritonConfig(16, 16, 4, 1, 1)), tensors, {})
    ((_, checked),) = checks(texts, 2**60)
    return checked


def stops(checked, text):
    """Whether a text stops at an index out of range."""
    return any("out of range" in one for one in changed(checked, None, text))


def changed(checked, reference, text):
    return differences(replace(checked, calls=(replace(checked.calls[0], text=text),)), reference, 200)


@pytest.mark.slow
def test_wrong_checks_are_found():
    """Each change of a line of a check, for pages from the first one to the last, in full tiles and in partial ones."""
    every = batch(1)
    every.table[:] = torch.arange(every.table.numel()).view(every.table.shape) % PAGES
    short, _ = hostile(replace(every, lengths=torch.tensor([1, SLOTS, 2 * SLOTS + 1])), negative=True)
    last = replace(every, table=torch.full_like(every.table, PAGES - 1))
    right = [launches(plain(x)) for x in (every, last, short)]
    places = ((1, 0), (1, 5), (0, 1), (2, 3))
    wild = []
    for (sequence, place), entry in product(places, WILD[:2]):
        table = every.table.clone()
        table[sequence, place] = entry
        wild.append(launches(plain(replace(every, table=table))))
    text = right[0].calls[0].text
    references = [(one, Reference(one)) for one in right]
    assert not any(changed(*one, text) for one in references) and all(stops(one, text) for one in wild)
    count, missed = 0, []
    for mutant in mutants(text):
        if any(part in mutant.what.split("; in: ")[-1] for part in OF_CHECKS):
            count += 1
            found = any(changed(*one, mutant.text) for one in references)
            if not found and all(stops(one, mutant.text) for one in wild):
                missed.append(mutant.what)
    assert [what for what in missed if not any(re.search(pattern, what) for pattern in EQUAL)] == []
    assert count > 100 and len(missed) < 10


def test_no_kernel_calls_a_function_to_stop():
    """ptxas would make a warpgroup's matrix products wait for each other."""
    plan = plan_of_pairs()
    texts = [emit(plan.kernels[0], plan, replace(Facts(), machine=name)).text for name in ("sm_90", "gfx942")]
    asserting = ["debug" in compiler_options(text) for text in texts]
    assert ["stop_where(" in text for text in texts] == [True, False] and asserting == [False, True]


def plan_of_pairs():
    q, k, v = torch.empty(3, 2, 4, 512, 64, dtype=torch.bfloat16)
    table, index = torch.empty(ENTRIES, dtype=torch.bfloat16), torch.zeros(512, 512, dtype=torch.int64)
    return planned(of_pairs, (q, k, v, table, index))


def test_a_loop_of_gluon_reads_no_place_as_nan():
    """To stop in that loop took 3.5 ms instead of 1.5; a load under a condition keeps registers in memory."""
    text = source_of(plan_of_pairs())[2].text
    loads = [line for line in text.splitlines() if "gl.load(table" in line]
    assert len(loads) == 2 and all('float("nan")' in line and " == near" in line for line in loads)
    assert "mask=" not in "".join(loads) and "stop_where(" not in text and "device_assert" not in text

"""Entries of a page table behind a length may hold anything, but the original calls, tried as a rival, read them all.

They raised on a CPU, and on a GPU such a read ends the process's use of it. A plan that leaves out such entries has no
original calls as rivals on a GPU. On a CPU they are tried, since small calls took the plan 5 times as long; where they
meet such an entry the plan runs, and they run no more. Never as Inductor compiles them: with several threads, such an
entry ends the process.
"""

import pytest
import torch

import onepass
from onepass.api.backend import onepass_backend
from onepass.compiler import compiled_region
from onepass.compiler.options import Options
from onepass.graph.trace import program_of
from onepass.runtime import executors, library_choice
from tests.support.pages import batch, by_gather, by_index, doubled, hostile, plain

pytestmark = pytest.mark.usefixtures("fresh")


CALL = type("Call", (), {"sizes": {}, "deterministic": False})


@pytest.mark.parametrize("function, wraps", [(by_index, True), (by_gather, False)])
def test_every_call_of_the_default_options_is_right(function, wraps):
    run = torch.compile(function, backend=onepass_backend, options={"inner": "eager"})
    x = batch()
    for negative in (False, wraps, False, wraps):
        wild, tame = hostile(x, negative)
        with torch.no_grad():
            found, wanted = run(*plain(wild)), function(*doubled(plain(tame)))
        torch.testing.assert_close(found, wanted, check_dtype=False, atol=1e-5, rtol=1e-4)
    (region,) = onepass.reports()[-1].regions
    assert region.ran == "tiled"


def whole(q, kc, vc, table, lengths):
    k, v = (c[table].flatten(1, 2).transpose(1, 2).repeat_interleave(4, 1) for c in (kc, vc))
    return torch.softmax(q @ k.mT / 4, -1) @ v


def causal(q, kc, vc, table, lengths):
    k, v = (c[table].flatten(1, 2).transpose(1, 2).repeat_interleave(4, 1) for c in (kc, vc))
    later = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).triu(40)
    return torch.softmax((q @ k.mT / 4).masked_fill(later, -torch.inf), -1) @ v


@pytest.mark.parametrize("inner", ["eager", "inductor"])
def test_the_original_calls_run_until_they_meet_such_an_entry(inner):
    """Whole tables first, then one with a wild entry, then whole ones again: each result is right."""
    run = torch.compile(by_index, backend=onepass_backend, options={"inner": inner})
    x, ran = batch(), []
    for is_wild in (False, False, False, True, False):
        wild, tame = hostile(x, False)
        with torch.no_grad():
            found, wanted = run(*plain(wild if is_wild else tame)), by_index(*doubled(plain(tame)))
        torch.testing.assert_close(found, wanted, check_dtype=False, atol=1e-5, rtol=1e-4)
        ran.append(onepass.reports()[-1].regions[0].ran.split(", measured")[0])
    assert ran[2] == executors.ORIGINAL and "tile" in ran[3] and "tile" in ran[4]


@pytest.mark.parametrize("function, tried", [(whole, True), (causal, True), (by_index, False), (by_gather, False)])
def test_who_has_the_original_calls_as_rivals(function, tried):
    given = plain(batch(3))
    known = compiled_region.make(program_of(function, *given), Options())
    assert (executors.ORIGINAL in library_choice._originals(known, CALL, "cuda")) is tried
    here = library_choice.rivals(known, given, CALL)
    assert executors.ORIGINAL in here and (executors.COMPILED in here) is tried
    assert executors.hides_entries(known) is not tried


def test_a_table_of_one_page_has_entries_behind_a_length_of_0():
    q, kc, vc, table, lengths = plain(batch(lengths=(3, 0, 8)))
    table = table[:, :1].clone()
    table[1] = 10**9
    known = compiled_region.make(program_of(by_index, q, kc, vc, table, lengths), Options())
    assert executors.ORIGINAL not in library_choice._originals(known, CALL, "cuda")
    run = torch.compile(by_index, backend=onepass_backend, options={"inner": "eager"})
    for _ in range(2):
        with torch.no_grad():
            found = run(q, kc, vc, table, lengths)
    tame = table.clone()
    tame[1] = 0
    wanted = by_index(q, kc, vc, tame, lengths)
    torch.testing.assert_close(found[::2], wanted[::2], atol=1e-5, rtol=1e-4)

"""Pages of two tables side by side: where keys are those of the one, the other's nearest entry was looked up, too.

It may be behind a length, where entries hold anything: the tiled executor raised IndexOutOfRange, and a kernel on a GPU
would have stopped. An index that data gives is now read only where the choice takes its arm.
"""

import pytest
import torch

import onepass
from onepass.api.backend import onepass_backend
from onepass.compiler import compiled_region
from onepass.compiler.options import Options
from onepass.egraph.terms.traversal import subterms
from onepass.graph.trace import program_of
from onepass.lowering.plan.queries import roots
from tests.support.pages import WIDTH, attend, batch, by_index, doubled, hostile, plain

pytestmark = pytest.mark.usefixtures("fresh")


def two_tables(q, kc, vc, table, lengths):
    """One table as two: pages of the first two entries, then of the others."""
    k, v = (torch.cat([c[table[:, :2]], c[table[:, 2:]]], 1).flatten(1, 2).transpose(1, 2) for c in (kc, vc))
    return attend(q, k, v, lengths)


def three_tables(q, kc, vc, table, lengths):
    parts = (slice(0, 1), slice(1, 4), slice(4, None))
    k, v = (torch.cat([c[table[:, p]] for p in parts], 1).flatten(1, 2).transpose(1, 2) for c in (kc, vc))
    return attend(q, k, v, lengths)


@pytest.mark.parametrize("function", [two_tables, three_tables])
@pytest.mark.parametrize("executor, dynamic", [("tiled", False), ("tiled", True), ("triton", False), ("auto", False)])
def test_entries_behind_a_length_may_hold_anything(function, executor, dynamic):
    options = {"inner": "eager", "strict": True, "executor": executor}
    run = torch.compile(function, backend=onepass_backend, dynamic=dynamic, options=options)
    for lengths in ((1, 8, 9), (48, 16, 17)):
        for negative in (False, True):
            wild, tame = hostile(batch(lengths=lengths), negative)
            with torch.no_grad():
                found, wanted = run(*plain(wild)), function(*doubled(plain(tame)))
            torch.testing.assert_close(found, wanted, check_dtype=False, atol=1e-5, rtol=1e-4)
    assert all("computed in the kernel" in note for note in onepass.reports()[-1].regions[0].around)


def test_an_entry_that_is_used_is_still_checked():
    q, kc, vc, table, lengths = plain(batch(lengths=(9, 48, 25)))
    table[0, 0] = 13
    run = torch.compile(two_tables, backend=onepass_backend, options={"inner": "eager", "executor": "tiled"})
    with torch.no_grad(), pytest.raises(IndexError):
        run(q, kc, vc, table, lengths)


def two_numbers_in_a_byte(q, kc, vc, table, lengths):
    """Each entry of a table leads to both, so it is looked up once, without a choice: that took 30 times as long."""
    halves = lambda x: torch.stack([x % 16, x // 16], -1).flatten(-2).float() - 8
    k, v = (halves(c[table].flatten(1, 2).transpose(1, 2)) for c in (kc, vc))
    return attend(q, k, v, lengths)


def bytes_of(q, kc, vc, table, lengths):
    packed = (torch.randint(256, (*c.shape[:-1], c.shape[-1] // 2), dtype=torch.uint8) for c in (kc, vc))
    return q, *packed, table, lengths


def test_two_numbers_in_a_byte_have_one_entry():
    plan = compiled_region.make(program_of(two_numbers_in_a_byte, *bytes_of(*plain(batch()))), Options()).plan
    assert "read_where_chosen" not in plan.plan_passes and "equal" in plan.read_back
    nodes = {n for kernel in plan.kernels for root in roots(kernel) for n in subterms(root)}
    pages = {n.args[0] for n in nodes if n.op == "load" and n.attrs[0].name == "kc"}
    assert pages and not any(d.size == WIDTH for page in pages for d in page.dims)


@pytest.mark.parametrize("function, changed", [(two_tables, True), (by_index, False)])
def test_only_choices_between_tables_change_a_plan(function, changed):
    plan = compiled_region.make(program_of(function, *plain(batch())), Options()).plan
    assert ("read_where_chosen" in plan.plan_passes) is changed and "equal" in plan.read_back

"""Pages and blocks that a table names for each sequence counted as positions of a lookup: scores of all of them were
computed and stored, "a function of place", and then picked from.

A table of products pays where rows choose what is read. What everything that the loop streams depends on is a batch.
"""

import pytest
import torch

import onepass
from onepass.egraph.terms.ops import iota, load, reduce
from onepass.egraph.terms.term import Dim, Tensor
from onepass.lowering.planning.tabulate_lookups import lookup_table
from tests.issues.fusion.test_pages_read_in_place import close, compiled
from tests.support.pages import attend, batch, by_slots, doubled, plain

pytestmark = pytest.mark.usefixtures("fresh")
BLOCK = 8
b, i, j, d = Dim("b", 3), Dim("i", 30), Dim("j", 20), Dim("d", 8)


def picked(q, k, v, chosen):
    """Blocks chosen for each sequence and head of keys, as sparse attention at decoding has it."""
    batch, heads, length, width = k.shape
    at = (torch.arange(batch)[:, None, None], torch.arange(heads)[:, None], chosen)
    k, v = (x.view(batch, heads, length // BLOCK, BLOCK, width)[at].flatten(2, 3) for x in (k, v))
    return attend(q, k, v, torch.full((batch,), k.shape[2] + q.shape[2] - 1))


def picked_by_each_row(q, table, chosen, v):
    """Here the rows choose: a table of products is what pays."""
    return torch.softmax(torch.einsum("bhid,ijd->bhij", q, table[chosen]), -1) @ v


CASES = {
    "slots": (by_slots, lambda: plain(batch())),
    "blocks": (
        picked,
        lambda: (
            *(torch.randn(3, 4, 1, 16), torch.randn(3, 2, 64, 16), torch.randn(3, 2, 64, 16)),
            torch.randint(0, 8, (3, 2, 5)),
        ),
    ),
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("executor", ["tiled", "triton"])
@pytest.mark.parametrize("name", CASES)
def test_one_kernel_reads_what_is_named(name, executor):
    function, make = CASES[name]
    given = make()
    (region,) = onepass.explain(function, *given, options={"libraries": False}).regions
    assert len(region.kernels) == 1 and not region.between
    assert not any("outside" in note for note in region.around)
    with torch.no_grad():
        close(compiled(function, executor)(*given), function(*doubled(given)))


def test_what_rows_choose_is_still_a_table():
    given = torch.randn(2, 2, 30, 16), torch.randn(9, 16), torch.randint(0, 9, (30, 20)), torch.randn(2, 2, 20, 16)
    options = {"libraries": False, "fuse_loads": "always"}
    (region,) = onepass.explain(picked_by_each_row, *given, options=options).regions
    assert any("is a function of place" in note for note in region.between)


def test_a_batch_is_no_other_dim():
    page = load(Tensor("pages", "int64", (3, 20)), iota(b), iota(j))
    q = load(Tensor("q", "float32", (3, 30, 8)), iota(b), iota(i), iota(d))
    scores = reduce("sum", d, q * load(Tensor("k", "float32", (25, 8)), page, iota(d)))
    assert lookup_table(scores, j) is not None
    assert lookup_table(scores, j, frozenset({b, j})) is None

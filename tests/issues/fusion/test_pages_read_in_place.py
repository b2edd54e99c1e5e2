"""Keys and values of a paged cache were gathered in front of the region: written, and read again: three times
the bytes.

A gather is index arithmetic as a view is, wherever it stands: the kernel reads the pages in place. Each spelling is
held to one kernel, to the load of keys that is captured, and to float64.
"""

import pytest
import torch

import onepass
from onepass.api.backend import onepass_backend
from onepass.graph.survey import gathered
from tests.support.pages import SPELLINGS, Spelling, batch, doubled, hostile, plain

pytestmark = pytest.mark.usefixtures("fresh")
EXECUTORS = ("tiled", "triton")
by_name = pytest.mark.parametrize("spelling", SPELLINGS, ids=lambda one: one.name)


def compiled(function, executor="tiled", dynamic=False, left=None, **more):
    """The compiled function; `left` gets the gathers that stay outside of kernels."""
    gathers = [] if left is None else left
    options = {"inner": "eager", "strict": True, "libraries": False, "executor": executor, **more}

    def backend(module, inputs):
        made = onepass_backend(module, inputs, options=options)
        gathers.extend(n for n in module.graph.nodes if gathered(n))
        return made

    return torch.compile(function, backend=backend, dynamic=dynamic)


def close(found, right):
    torch.testing.assert_close(found, right, check_dtype=False, atol=1e-5, rtol=1e-4, equal_nan=True)


@pytest.mark.sampled(1)
@by_name
def test_one_kernel_reads_the_pages(spelling: Spelling):
    (region,) = onepass.explain(spelling.function, *spelling.inputs(batch())).regions
    assert spelling.load in region.captured
    assert len(region.kernels) == 1 and region.passes[1] == 1
    assert all("gather" in note and "computed in the kernel" in note for note in region.around)


@pytest.mark.slow
@pytest.mark.parametrize(("executor", "dynamic"), [("tiled", True), ("triton", False)])
@by_name
def test_every_spelling_is_right(spelling: Spelling, executor, dynamic):
    left = []
    run = compiled(spelling.function, executor, dynamic, left)
    for rows in (1, 3):
        x = batch(rows)
        for one in (x, hostile(x, spelling.wraps)[1]):
            given = spelling.inputs(one)
            with torch.no_grad():
                close(run(*given), spelling.function(*doubled(given)))
    assert not left and all(r.ran == executor for report in onepass.reports() for r in report.regions)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", [torch.int32, torch.int64])
def test_tables_of_either_integer(kind):
    by_index = SPELLINGS[0].function
    given = list(plain(batch(2)))
    given[3], given[4] = given[3].to(kind), given[4].to(kind)
    for executor in EXECUTORS:
        with torch.no_grad():
            close(compiled(by_index, executor)(*given), by_index(*doubled(given)))


def test_bytes_are_those_of_the_pages_that_are_read():
    """And not of all pages that there are."""
    x = batch()
    many = [c.repeat(200, 1, 1, 1) for c in (x.kc, x.vc)]
    (region,) = onepass.explain(SPELLINGS[0].function, x.q, *many, x.table, x.lengths).regions
    pages = 2 * x.table.numel() * x.kc[0].numel() * 4
    assert pages < region.bytes[1] < 1.2 * pages and region.bytes[0] < many[0].numel() * 4


def also_attended(q, kc, vc, table, lengths):
    k, v = (c[table].flatten(1, 2).transpose(1, 2) for c in (kc, vc))
    return torch.softmax(q[:, :2] @ k.mT, -1) @ v, k


def test_a_copy_that_is_made_anyway_is_read():
    x = batch()
    given = (x.q, x.kc, x.vc, x.table, x.lengths)
    (region,) = onepass.explain(also_attended, *given, options={"libraries": False}).regions
    assert sorted("is also used by" in note for note in region.around) == [False, True]
    with torch.no_grad():
        for found, right in zip(compiled(also_attended)(*given), also_attended(*doubled(given)), strict=True):
            close(found, right)


def test_without_fused_loads_the_copy_is_read():
    x = batch()
    (region,) = onepass.explain(SPELLINGS[0].function, *plain(x), options={"fuse_loads": "never"}).regions
    assert "kc[" not in region.captured and not region.around


def test_a_long_prefill_reads_pages_too():
    """Its tiles of rows read each page again, as they would read a copy again."""
    x = batch(rows=900, lengths=(900, 1000))
    (region,) = onepass.explain(SPELLINGS[0].function, x.q, x.kc, x.vc, x.table.repeat(1, 24), x.lengths).regions
    assert SPELLINGS[0].load in region.captured

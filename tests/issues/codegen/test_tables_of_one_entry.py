"""A page table of one entry: whether it is a page is one truth for a whole tile, which the interpreter did not spread.

A mask of pages' slots and of that truth had no dtype there, and the call failed. It is now part of the loop's end.
"""

import pytest
import torch

import onepass
from onepass.api.backend import onepass_backend
from tests.support.pages import by_index, by_index_select, doubled

pytestmark = pytest.mark.usefixtures("fresh")


@pytest.mark.parametrize("function", [by_index, by_index_select])
@pytest.mark.parametrize("rows, dynamic", [(1, False), (3, False), (3, True)])
def test_one_page_for_each_sequence(function, rows, dynamic):
    q, cache, table = torch.randn(2, 4, rows, 16), torch.randn(2, 5, 8, 2, 16), torch.tensor([[4], [2]])
    options = {"inner": "eager", "strict": True, "executor": "triton"}
    run = torch.compile(function, backend=onepass_backend, options=options, dynamic=dynamic)
    for lengths in (torch.tensor([3, 8]), torch.tensor([7, 4])):
        given = (q, *cache, table, lengths)
        with torch.no_grad():
            torch.testing.assert_close(run(*given).double(), function(*doubled(given)), atol=1e-5, rtol=1e-4)
    assert onepass.reports()[-1].regions[0].ran == "triton"

"""Pages that an exported program, or a graph of ATen, reads were gathered in front of the region.

ATen's index was not seen to be a gather. A check that export writes, of the dtype of a copy, and a call for the size
of one read what is gathered, so it was written. Each spelling is held to a graph in which no gather is left, and to
float64, with batches, tables and caches of other sizes.
"""

import pytest
import torch
from torch.export import Dim, export

from onepass import GraphPass
from onepass.graph.survey import gathered
from onepass.report import records
from tests.support.pages import SPELLINGS, batch, doubled, hostile

pytestmark = pytest.mark.usefixtures("fresh")
OF_ONE_LENGTH = ("by_index_select", "by_gather", "by_take_along_dim", "by_embedding", "by_slots")  # len() is a number
CASES = [
    pytest.param(one, *how, id=f"{one.name}-{how}")
    for one in SPELLINGS
    for how in ((False, True), (True, False), (True, True))
    if not (how[0] and one.name in OF_ONE_LENGTH)
]


def exported(spelling, inputs, dynamic: bool, decomposed: bool) -> torch.fx.GraphModule:
    """The program as a graph of ATen. dynamic: the number of sequences, and of entries of a table's row."""

    class Program(torch.nn.Module):
        def forward(self, *given):
            return spelling.function(*given)

    sequences, row = Dim("sequences", min=2, max=64), Dim("row", min=2, max=64)
    table = next(n for n, x in enumerate(inputs) if x.dtype == torch.int64 and x.dim() == 2)
    shapes = {0: {0: sequences}, table: {0: sequences, 1: row}, table + 1: {0: sequences}} if dynamic else {}
    dims = (tuple(shapes.get(n) for n in range(len(inputs))),) if dynamic else None
    with torch.no_grad():
        made = export(Program(), inputs, dynamic_shapes=dims)
        return (made.run_decompositions() if decomposed else made).graph_module


def with_seed(spelling, x):
    torch.manual_seed(0)  # scales and biases are drawn
    return spelling.inputs(x)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("spelling", "dynamic", "decomposed"), CASES)
def test_no_gather_is_left_and_the_results_are_right(spelling, dynamic, decomposed):
    x = batch()
    module = exported(spelling, spelling.inputs(x), dynamic, decomposed)
    GraphPass(strict=True, executor="tiled", libraries=False)(module.graph)
    module.recompile()
    assert not [n for n in module.graph.nodes if gathered(n)] and len(records.reports()[-1].regions) == 1
    wild, tame = hostile(x, spelling.wraps)
    adds_its_mask = decomposed and "sdpa" in spelling.name  # torch's decomposition then asks every score if it is -inf
    cases = [(x, x)] if adds_its_mask else [(x, x), (wild, tame)]
    if dynamic:
        cases.append((batch(1, lengths=(1, 8, 7, 33)),) * 2)
    for given, same in cases:
        tensors, right = (with_seed(spelling, one) for one in (given, same))
        (found,), wanted = module(*tensors), spelling.function(*doubled(right))
        torch.testing.assert_close(found, wanted, check_dtype=False, atol=1e-5, rtol=1e-4)

"""With symbolic sizes, the gather of pages stayed: a size asked of it kept it alive, pages had a symbol for their
slots, which torch takes for the width where both are equal, and torch's attention was asked for heads before these were
known.
"""

import pytest
import torch

import onepass
from tests.issues.fusion.test_pages_read_in_place import close, compiled
from tests.support.pages import SLOTS, batch, by_grouped_sdpa, by_index, by_index_select, doubled, plain, quantised
from tests.support.pages import quantised_by_token as by_token

pytestmark = pytest.mark.usefixtures("fresh")
CASES = {
    "a size of what is gathered": (by_index_select, plain),
    "slots": (by_index, plain),
    "slots of scales": (by_token, lambda x: quantised(x, SLOTS, x.kc.shape[2], 1)),
    "heads that share keys": (by_grouped_sdpa, plain),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_pages_of_as_many_slots_as_the_width(name):
    function, inputs = CASES[name]
    left = []
    run = compiled(function, "tiled", dynamic=True, left=left)
    for lengths in ((9, 48, 25), (7, 8, 40), (1, 17, 33)):
        given = inputs(batch(1, 8, lengths, width=SLOTS))
        with torch.no_grad():
            close(run(*given), function(*doubled(given)))
    (report,) = onepass.reports()
    assert not left and len(report.regions[0].kernels) == 1 and f"j // {SLOTS}" in report.regions[0].captured

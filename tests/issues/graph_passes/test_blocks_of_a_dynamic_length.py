"""A dynamic length in blocks, `x.unflatten(2, (-1, 8))`: torch calls their size s // (s // 8), which nothing undid.

And relative positions by a shifted view, whose result torch calls s · (t // s). Both kept their regions as written.
"""

import math

import pytest
import torch

from onepass.api.backend import onepass_backend
from onepass.egraph.terms.sizes import of_whole_blocks, product
from onepass.report import records

pytestmark = pytest.mark.usefixtures("fresh")


def attend(q, k, v):
    return torch.softmax(q @ k.mT / math.sqrt(q.shape[-1]), -1) @ v


def chunks(q, k, v):
    """Reformer's: blocks of sorted tokens, each with the block in front of it."""
    q, k, v = (x.unflatten(2, (-1, 8)) for x in (q, k, v))
    look = lambda x: torch.cat([x, torch.roll(x, 1, 2)], 3)
    return attend(q, look(k), look(v)).flatten(2, 3)


def chunks_by_view(q, k, v):
    q, k, v = (x.view(*x.shape[:2], x.shape[2] // 8, 8, x.shape[3]) for x in (q, k, v))
    return attend(q, k, v).flatten(2, 3)


def shifted(q, k, v):
    """Transformer-XL's: distances are moved into place by a row of zeros and a view."""
    scores, distances = q @ k.mT, q @ v.mT
    b, h, i, j = distances.shape
    moved = torch.cat([distances.new_zeros(b, h, i, 1), distances], -1).view(b, h, j + 1, i)[:, :, 1:]
    return torch.softmax(scores + moved.reshape(b, h, i, j), -1) @ v


CASES = [chunks, chunks_by_view, shifted]


SAME = [((8, "(s0//8)"), ("s0",)), ((4, "(s0//4)", 3), (3, "s0")), ((16, "(s0//8)"), (2, "s0"))]


@pytest.mark.parametrize("sizes, same", SAME)
def test_blocks_fill_their_length(sizes, same):
    assert of_whole_blocks(product(sizes)) == of_whole_blocks(product(same))


def test_other_quotients_stay():
    assert of_whole_blocks(product((6, "(s0//8)"))) != of_whole_blocks(product(("s0",)))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("function", CASES)
def test_one_graph_serves_all_lengths(function, dynamic):
    run = torch.compile(function, backend=onepass_backend, options={"strict": True, "inner": "eager"}, dynamic=dynamic)
    for length in (48, 64) if dynamic else (48,):
        inputs = [torch.randn(2, 3, length, 16) for _ in range(3)]
        exact = function(*(x.double() for x in inputs))
        torch.testing.assert_close(run(*inputs), exact, check_dtype=False, atol=1e-5, rtol=1e-4)
    (said,) = records.reports()
    assert not said.refusals and [(r.count, r.passes[0]) for r in said.regions] == [(1, 3)]

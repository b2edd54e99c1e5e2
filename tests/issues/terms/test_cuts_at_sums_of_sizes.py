"""Keys joined behind a cache of 2·s keys were cut at 2·s again and again: a coordinate below a size that is a sum or
a multiple of symbols was not known to be below it, and a cut at the end of an axis was taken for progress.
"""

import pytest
import torch

from onepass.api.backend import onepass_backend
from onepass.egraph.terms.affine import compare, linear_size
from onepass.egraph.terms.ops import const, iota
from onepass.egraph.terms.sizes import term_of
from onepass.egraph.terms.term import Dim
from onepass.report import records

pytestmark = pytest.mark.usefixtures("fresh")


def attend(q, k, v, past, values):
    k, v = torch.cat([past, past, k], 1), torch.cat([values, values, v], 1)
    return torch.softmax(q @ k.mT, -1) @ v


@pytest.mark.parametrize("size", ["s0", "2*s0", "s0 + s1", "3*s0 + s1 + 2"])
def test_a_coordinate_is_below_its_size(size):
    i = iota(Dim("i", size))
    assert compare("lt", i, term_of(size)) is const(True)
    assert compare("lt", i, term_of(size) - const(1)) is not const(True)
    assert compare("le", term_of(size) + const(1), i) is not const(True)


def test_other_sizes_are_one_unknown():
    assert all(len(linear_size(size)[0]) == 1 for size in ("(s0//2)", "s0**2", "s0*s1", "-s0"))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("dynamic", [True, None])
def test_each_length_is_right_and_nothing_is_concatenated(dynamic):
    run = torch.compile(attend, backend=onepass_backend, options={"strict": True, "inner": "eager"}, dynamic=dynamic)
    for past in (12, 30):
        q, k, v = (torch.randn(3, n, 8) for n in (5, 1, 1))
        inputs = q, k, v, torch.randn(3, past, 8), torch.randn(3, past, 8)
        torch.testing.assert_close(run(*inputs), attend(*inputs), atol=1e-5, rtol=1e-5)
    assert all("where" not in region.captured for r in records.reports() for region in r.regions)
    assert sum(region.count for r in records.reports() for region in r.regions) >= 1

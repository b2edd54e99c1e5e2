"""A softmax over pages and their slots, or over one axis that is a view of two, stored all scores: its sums over the
two axes were loops in one another, and its largest score was found by a loop over both. They are one loop now.
"""

import pytest
import torch

from onepass.api.backend import onepass_backend
from onepass.compiler.optimize import optimize_all
from onepass.graph.trace import program_of
from onepass.translate.translate import translate

pytestmark = pytest.mark.usefixtures("fresh")


def pages_and_slots(q, k_cache, v_cache, table):
    """q [b, h, d], caches [pages, slots, h, d], table [b, n]."""
    k, v = k_cache[table], v_cache[table]
    scores = torch.einsum("bhd,bnshd->bhns", q, k) / 4
    weights = scores.flatten(-2).softmax(-1).view(scores.shape)
    return torch.einsum("bhns,bnshd->bhd", weights, v)


def view_of_keys(q, k, v):
    k, v = (x.unflatten(2, (4, -1)) for x in (k, v))
    scores = torch.einsum("bhid,bhnsd->bhins", q, k) / 4
    weights = scores.flatten(-2).softmax(-1).view(scores.shape)
    return torch.einsum("bhins,bhnsd->bhid", weights, v)


def written_out(q, k, v):
    k, v = (x.unflatten(2, (4, -1)) for x in (k, v))
    scores = torch.einsum("bhid,bhnsd->bhins", q, k) / 4
    weights = torch.exp(scores - scores.amax((-2, -1), keepdim=True))
    return torch.einsum("bhins,bhnsd->bhid", weights / weights.sum((-2, -1), keepdim=True), v)


def kept(q, k, v):
    """A mask over both axes that leaves the first row one key."""
    k, v = (x.unflatten(2, (4, -1)) for x in (k, v))
    scores = torch.einsum("bhid,bhnsd->bhins", q, k) / 4
    place = torch.arange(k.shape[2])[:, None] * k.shape[3] + torch.arange(k.shape[3])
    scores = scores.masked_fill(place > torch.arange(q.shape[2])[:, None, None], -torch.inf)
    weights = scores.flatten(-2).softmax(-1).view(scores.shape)
    return torch.einsum("bhins,bhnsd->bhid", weights, v)


PROGRAMS = (pages_and_slots, view_of_keys, written_out, kept)


def drawn(function, scale=1.0):
    torch.manual_seed(0)
    draw = lambda *sizes: (scale * torch.randn(*sizes)).bfloat16()
    if function is pages_and_slots:
        return draw(2, 4, 16), draw(20, 8, 4, 16), draw(20, 8, 4, 16), torch.randint(-20, 20, (2, 12))
    return draw(2, 3, 7, 16), draw(2, 3, 96, 16), draw(2, 3, 96, 16)


@pytest.mark.parametrize("function", PROGRAMS)
def test_one_kernel_with_one_loop(function):
    (kernel,) = optimize_all(translate(program_of(function, *drawn(function))).results).plan.kernels
    (loop,) = kernel.loops
    assert loop.dim.size == 96


@pytest.mark.parametrize("scale", [1.0, 12.0])
@pytest.mark.parametrize("function", PROGRAMS)
def test_results(function, scale):
    given = drawn(function, scale)
    compiled = torch.compile(function, backend=onepass_backend, options={"inner": "eager", "libraries": False})
    right = function(*(x.double() if x.is_floating_point() else x for x in given))
    torch.testing.assert_close(compiled(*given).double(), right, rtol=2e-2, atol=2e-2 * scale)


def test_sums_of_products_over_two_axes_stay_apart():
    """A product over heads and their columns has no scores inside: nothing is gained by one index for both."""
    function = lambda q, k, v: torch.einsum("bihd,bjhd->bij", q, k).softmax(-1) @ v
    torch.manual_seed(0)
    given = torch.randn(1, 20, 2, 16), torch.randn(1, 20, 2, 16), torch.randn(1, 20, 16)
    (kernel,) = optimize_all(translate(program_of(function, *given)).results).plan.kernels
    assert {d.size for loop in kernel.loops for d in (loop.dim,)} == {20}

"""Inductor 2.13 takes attention for its own kernel's whatever dim the softmax is over (pytorch issue 196468).

What onepass fuses never was wrong; what it left to Inductor was.
"""

import math

import pytest
import torch
import torch.nn.functional as F
from torch._dynamo.utils import counters
from torch.utils.checkpoint import checkpoint

from onepass import GraphPass
from onepass.api.backend import onepass_backend
from onepass.graph_passes.reduced_dims import HOOK, OverLastDims, with_other_dims
from onepass.report import records

pytestmark = pytest.mark.usefixtures("fresh")
DIMS = (0, 1, -2, -1)


@pytest.fixture(autouse=True)
def no_caches(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    counters.clear()


def divided(dim):
    return lambda q, k, v: torch.softmax((q @ k.mT).div(3), dim) @ v


def dropped(dim):
    return lambda q, k, v: F.dropout(torch.softmax((q @ k.mT) * 0.4, dim), 0.23, training=False) @ v


def masked(dim):
    mask = lambda q, k: torch.where(torch.ones(q.shape[-2], k.shape[-2]).tril() > 0, 0.0, -1.0)
    return lambda q, k, v: torch.softmax(q @ k.mT / 4 + mask(q, k), dim) @ v


def by_hand(dim):
    def function(q, k, v):
        scores = (q @ k.mT).div(3)
        weights = torch.exp(scores - scores.amax(dim, keepdim=True))
        return (weights / weights.sum(dim, keepdim=True)) @ v

    return function


FORMS = (divided, dropped, masked, by_hand)
WAYS = {
    "backend": lambda f: torch.compile(f, backend=onepass_backend, options={"strict": True}),
    "pass": lambda f: torch.compile(f, options={HOOK: GraphPass(strict=True)}),
}


def refused(function):
    """The same where onepass refuses the region."""

    def under_autocast(*inputs):
        with torch.autocast("cpu", enabled=False):
            return function(*inputs)

    return under_autocast


def heads():
    return [torch.randn(4, 4, 4, 16) for _ in range(3)]


def assert_right(run, function, inputs):
    torch.testing.assert_close(run(*inputs).double(), function(*(x.double() for x in inputs)), rtol=1e-4, atol=1e-5)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("form", FORMS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("dim", DIMS)
def test_it_is_fused_and_right(form, dim, way):
    with torch.no_grad():
        assert_right(WAYS[way](form(dim)), form(dim), heads())
    found = records.reports()[-1]
    assert len(found.regions) == 1 and not found.refusals and not found.failures


@pytest.mark.sampled(1)
@pytest.mark.parametrize("form", FORMS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("dim", DIMS)
def test_what_is_refused_is_right_too(form, dim):
    with torch.no_grad():
        assert_right(WAYS["backend"](refused(form(dim))), form(dim), heads())
    found = records.reports()[-1]
    assert [r.kind for r in found.refusals] == ["autocast"] and not found.regions
    assert counters["inductor"]["fuse_attention"] == (dim == -1), "over the last dim Inductor's kernel is right"


@pytest.mark.sampled(1)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dim", DIMS[:-1])
def test_what_trains_is_right_too(dim, way):
    """A joint graph of forward and backward is left to Inductor by the pass, and a refused region by the backend."""
    function = divided(dim) if way == "pass" else refused(divided(dim))
    mine = [x.requires_grad_() for x in heads()]
    exact = [x.detach().double().requires_grad_() for x in mine]
    result, wanted = WAYS[way](function)(*mine), divided(dim)(*exact)
    for loss in (result, wanted):
        loss.cos().sum().backward()
    torch.testing.assert_close(result.double(), wanted, rtol=1e-4, atol=1e-5)
    for x, y in zip(mine, exact, strict=True):
        torch.testing.assert_close(x.grad.double(), y.grad, rtol=1e-4, atol=1e-5)
    assert not records.reports()[-1].regions


def test_what_a_checkpoint_holds_is_right_too():
    function = lambda *inputs: checkpoint(divided(-2), *inputs, use_reentrant=False)
    with torch.no_grad():
        assert_right(WAYS["backend"](function), divided(-2), heads())
    assert len(records.reports()[-1].regions) == 1


@pytest.mark.slow
def test_with_symbolic_sizes_and_lengths_that_differ():
    function = refused(divided(-2))
    run = torch.compile(function, backend=onepass_backend, dynamic=True)
    with torch.no_grad():
        for rows, keys in ((5, 7), (9, 4)):
            q, k, v = torch.randn(2, 3, rows, 8), torch.randn(2, 3, keys, 8), torch.randn(2, 3, keys, 8)
            assert_right(run, function, (q, k, v))


def graph_of(dim):
    return torch.fx.symbolic_trace(lambda x: F.softmax(x, dim))


def test_the_pass_is_added_where_it_is_needed_and_keeps_others():
    other = GraphPass()
    for dim, needed in ((-1, False), (-2, True), (None, True)):
        for patches in ({}, {HOOK: other}):
            found = with_other_dims(graph_of(dim), patches)
            if not needed:
                assert found == patches
                continue
            assert isinstance(found[HOOK], OverLastDims) and found[HOOK].then == tuple(patches.values())
            assert found[HOOK].uuid() is not None
    assert OverLastDims((print,)).uuid() is None and OverLastDims().uuid() != OverLastDims((other,)).uuid()


@pytest.mark.slow
def test_a_softmax_without_products_keeps_its_values_and_its_layout():
    function = lambda x: torch.softmax(torch.where(x > 2, -math.inf, x), 1)
    x = torch.randn(2, 5, 3, 4)
    with torch.no_grad():
        result, wanted = WAYS["backend"](function)(x), function(x)
    torch.testing.assert_close(result, wanted)
    assert result.stride() == wanted.stride()

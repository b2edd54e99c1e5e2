"""A checkpoint around a compiled function saw what tracing saved in its first call, and missed that in its second."""

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from onepass import GraphPass
from onepass.api.backend import onepass_backend
from onepass.report import records

pytestmark = pytest.mark.usefixtures("fresh")


def plain(q, k, v):
    return torch.softmax(q @ k.mT, -1) @ v


WAYS = {
    "eager": dict(backend=onepass_backend, options={"inner": "eager"}),
    "inductor": dict(backend=onepass_backend),
    "pass": dict(options={"pre_grad_custom_pass": GraphPass()}),
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("way", WAYS)
def test_the_first_call_saves_what_all_do(way):
    run = torch.compile(plain, **WAYS[way])
    for n in (9, 9, 17):
        torch.manual_seed(n)
        given = [torch.randn(1, 2, n, 8, requires_grad=True) for _ in range(3)]
        own = [x.detach().double().requires_grad_() for x in given]
        checkpoint(run, *given, use_reentrant=False).square().sum().backward()
        plain(*own).square().sum().backward()
        for mine, exact in zip(given, own, strict=True):
            torch.testing.assert_close(mine.grad.double(), exact.grad, atol=1e-4, rtol=1e-4)
    assert records.reports()[-1].regions


def test_hooks_see_what_the_call_saves():
    run, counts = torch.compile(plain, **WAYS["eager"]), []
    given = [torch.randn(1, 2, 9, 8, requires_grad=True) for _ in range(3)]
    packed = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: packed.append(x) or x, lambda x: x):
        for _ in range(2):
            run(*given)
            counts.append(len(packed))
    assert counts[1] == 2 * counts[0] > 0

"""Two inputs with memory of their own when a graph was traced shared it in a later call, and one was written between.

Scores were read after the write then, where eager reads them before: nothing compiles anew for that. Graphs look at
each call now and run as written where the two share; a pass, which cannot look, leaves the region.
"""

import pytest
import torch

from onepass import GraphPass
from onepass.api.backend import onepass_backend
from onepass.report import records

pytestmark = pytest.mark.usefixtures("fresh")


def written_between(q, k, v, cache):
    scores = q @ k.mT
    cache[:, :, :4] = 0.5
    return torch.softmax(scores, -1) @ (v + cache.mean())


def written_before(q, k, v, cache):
    cache[:, :, :4] = 0.5
    return torch.softmax(q @ k.mT, -1) @ (v + cache.mean())


def arguments(shared: bool):
    torch.manual_seed(0)
    q, k, v, cache = (torch.randn(2, 3, 40, 16) for _ in range(4))
    return [q, k, v, k.view(2, 3, 40, 16) if shared else cache]


def compiled(function, runs: list, inner: str):
    def backend(module, inputs):
        runs.append(onepass_backend(module, inputs, options={"inner": inner, "libraries": False}))
        return runs[-1]

    return torch.compile(function, backend=backend)


@pytest.mark.sampled(1)
@torch.no_grad()
@pytest.mark.parametrize("inner", ["eager", "inductor"])
@pytest.mark.parametrize("function", [written_between, written_before])
def test_a_later_call_may_share(function, inner):
    fast = compiled(function, runs := [], inner)
    for shared in (False, True, False):
        given, own = arguments(shared), arguments(shared)
        torch.testing.assert_close(fast(*given), function(*own), atol=2e-6, rtol=2e-6)
        torch.testing.assert_close(given, own)
    assert len(runs) == 1 and records.reports()[-1].regions


@torch.no_grad()
def test_only_a_write_between_is_looked_for():
    for function, looks in ((written_between, True), (written_before, False)):
        compiled(function, runs := [], "eager")(*arguments(False))
        assert ("_unless_shared" in runs[0].__qualname__) == looks


@torch.no_grad()
def test_a_pass_leaves_the_region():
    def backend(module, inputs):
        GraphPass()(module.graph)
        return module.forward

    torch.compile(written_between, backend=backend)(*arguments(False))
    (refusal,) = records.reports()[-1].refusals
    assert refusal.kind == "in-place" and "may be its memory" in refusal.reason

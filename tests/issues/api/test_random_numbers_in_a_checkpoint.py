"""Without Inductor, a checkpoint inside of a compiled function drew other random numbers when it ran again.

torch leaves that to the compiler of the graph, and its own backend "eager" has the same fault."""

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from onepass import reports
from onepass.api.backend import onepass_backend
from onepass.api.eager_graph import _run_checkpoint

pytestmark = pytest.mark.usefixtures("fresh")


def dropped(x, keys):
    return torch.nn.functional.dropout(torch.softmax(x @ keys.mT, -1) @ keys, 0.5) * x


@pytest.mark.sampled(1)
@pytest.mark.parametrize("nested", [False, True])
def test_both_directions_have_one_mask(nested):
    def function(x, keys):
        inner = lambda *given: checkpoint(dropped, *given, use_reentrant=False) if nested else dropped(*given)
        return checkpoint(inner, x, keys, use_reentrant=False)

    x, keys = torch.randn(2, 40, 16, requires_grad=True), torch.randn(2, 40, 16)
    result = torch.compile(function, backend=onepass_backend, options={"inner": "eager", "strict": True})(x, keys)
    (found,) = torch.autograd.grad(result.sum(), x)
    kept = result.detach() != 0
    own = x.detach().double().requires_grad_()
    attended = torch.softmax(own @ keys.double().mT, -1) @ keys.double()
    (right,) = torch.autograd.grad((attended * own)[kept].sum() * 2, own)
    torch.testing.assert_close(found, right, check_dtype=False, atol=1e-4, rtol=1e-4)
    assert len(reports()[-1].regions) == 1


def test_the_checkpoint_that_runs_is_torchs_own():
    graphs = []

    def backend(gm, example_inputs):
        graphs.append(gm)
        return onepass_backend(gm, example_inputs, options={"inner": "eager"})

    x = torch.randn(2, 40, 16, requires_grad=True)
    torch.compile(lambda x: checkpoint(dropped, x, x, use_reentrant=False), backend=backend)(x)
    assert _run_checkpoint in [n.target for n in graphs[0].graph.nodes]

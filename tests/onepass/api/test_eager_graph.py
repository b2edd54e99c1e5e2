"""A graph that runs without a compiler: its checkpoints are torch's own, with their policies, at each depth."""

import functools

import torch
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from onepass.api.eager_graph import without_compiler


def run(function, *given):
    """The function by its graph."""
    torch._dynamo.reset()
    return torch.compile(function, backend=lambda gm, example_inputs: without_compiler(gm))(*given)


def test_a_graph_without_a_checkpoint_runs_as_it_is():
    x = torch.randn(5)
    assert torch.equal(run(lambda x: x.sin() + 1, x), x.sin() + 1)


def test_random_numbers_are_the_same_in_both_directions():
    dropped = lambda x: torch.nn.functional.dropout(x, 0.5) * x
    inner = lambda x: checkpoint(dropped, x, use_reentrant=False)
    x = torch.ones(64, requires_grad=True)
    result = run(lambda x: checkpoint(inner, x, use_reentrant=False), x)
    (found,) = torch.autograd.grad(result.sum(), x)
    assert torch.equal(found, 2 * result.detach()) and 0 < result.count_nonzero() < 64


def test_the_policy_of_a_checkpoint_is_asked():
    asked = []

    def decide(context, operation, *args, **kwargs):
        asked.append(operation)
        return CheckpointPolicy.PREFER_RECOMPUTE

    policy = functools.partial(create_selective_checkpoint_contexts, decide)
    x = torch.randn(5, requires_grad=True)
    run(lambda x: checkpoint(torch.sin, x, use_reentrant=False, context_fn=policy), x).sum().backward()
    assert asked == [torch.ops.aten.sin.default]
    torch.testing.assert_close(x.grad, x.detach().cos())

"""Runs a graph of Dynamo's as it is, without a compiler: each call is torch's own.

In a graph, torch leaves it to the compiler that a checkpoint draws the same random numbers again. Invariant: what runs
is what the user wrote, recomputation included. Example: dropout in a checkpoint has one mask in both directions.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import fx
from torch._higher_order_ops.wrap import TagActivationCheckpoint
from torch.utils.checkpoint import checkpoint


def without_compiler(gm: fx.GraphModule) -> Callable:
    """A function that runs the graph. Its checkpoints keep the state of the random numbers, as eager's do."""
    for module in (m for m in gm.modules() if isinstance(m, fx.GraphModule)):
        calls = [n for n in module.graph.nodes if isinstance(n.target, TagActivationCheckpoint)]
        for node in calls:
            node.target = _run_checkpoint
        if calls:
            module.recompile()
    return gm.forward


def _run_checkpoint(body: fx.GraphModule, *args: object, use_reentrant: bool = False, **options: object) -> object:
    """The checkpoint of a body, with the user's policy. Dynamo has made a reentrant checkpoint an ordinary one."""
    policy = body.meta.get("_checkpoint_context_fn")
    if policy is not None:
        options["context_fn"] = policy
    return checkpoint(body, *args, use_reentrant=False, **options)

"""Runs a graph of Dynamo's as it is, without a compiler: each call is torch's own.

In a graph, torch leaves it to the compiler that a checkpoint draws the same random numbers again. Invariant: what runs
is what the user wrote, recomputation included. Example: dropout in a checkpoint has one mask in both directions.

A graph of regions and views has no kernel that Inductor could write, so it runs as it is: a first call is more than a
second shorter on a CPU. Where several views have gradients Inductor stays: autograd's own nodes take the host longer.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from functools import reduce

import torch
from torch import fx
from torch._dynamo import compiled_autograd
from torch._higher_order_ops.wrap import TagActivationCheckpoint
from torch._inductor import config
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx._lazy_graph_module import _LazyGraphModule
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

from ..graph.nodes import value_of_node
from ..graph.op_kinds import MOVES_ONLY_AXES, changes_in_place, has_trait

PLAIN = (torch.Tensor, torch.nn.Parameter, FakeTensor)
ASKS_FOR_INDUCTOR = (  # settings by which Inductor changes how any graph runs, or shows it to the user
    "triton.cudagraphs",
    "pre_grad_custom_pass",
    "joint_custom_pre_pass",
    "joint_custom_post_pass",
    "post_grad_custom_pre_pass",
    "post_grad_custom_post_pass",
)


def without_compiler(gm: fx.GraphModule) -> Callable:
    """A function that runs the graph. Its checkpoints keep the state of the random numbers, as eager's do."""
    for module in (m for m in gm.modules() if isinstance(m, fx.GraphModule)):
        calls = [n for n in module.graph.nodes if isinstance(n.target, TagActivationCheckpoint)]
        for node in calls:
            node.target = _run_checkpoint
        if calls:
            module.recompile()
    _LazyGraphModule.force_recompile(gm)  # its first code would look for the real one in each call: 4 microseconds
    return gm.forward


def _run_checkpoint(body: fx.GraphModule, *args: object, use_reentrant: bool = False, **options: object) -> object:
    """The checkpoint of a body, with the user's policy. Dynamo has made a reentrant checkpoint an ordinary one."""
    policy = body.meta.get("_checkpoint_context_fn")
    if policy is not None:
        options["context_fn"] = policy
    return checkpoint(body, *args, use_reentrant=False, **options)


def leaves_nothing_to_compile(gm: fx.GraphModule) -> bool:
    """Whether a graph has regions, and around them views alone, without gradients; and nothing asks for Inductor."""
    regions = gm.graph.find_nodes(op="call_function", target=torch.ops.onepass.region.default)
    if not regions or _asks_for_inductor():
        return False
    views = [node for node in gm.graph.nodes if _is_view(node)]
    others = set(gm.graph.nodes) - set(views)
    return _few_have_gradients(views, len(regions)) and all(
        node.op == "output" or _is_input(node) or _is_of_region(node) for node in others
    )


def _asks_for_inductor() -> bool:
    """Whether a setting of the process does, or a compiler that looks at the backward, too."""
    asked = any(reduce(getattr, name.split("."), config) for name in ASKS_FOR_INDUCTOR)
    return asked or compiled_autograd.compiled_autograd_enabled


def _few_have_gradients(views: Sequence[fx.Node], most: int) -> bool:
    """Whether gradients go through so many views at most, each of which only moves axes.

    For each the host takes 5 microseconds more than in a joint graph of Inductor's, and up to 100 where autograd puts a
    gradient together of parts.
    """
    recorded = [node for node in views if torch.is_grad_enabled() and any(x.requires_grad for x in _tensors(node))]
    return len(recorded) <= most and all(has_trait(node, MOVES_ONLY_AXES) for node in recorded)


def _is_input(node: fx.Node) -> bool:
    """Whether the node is an input: a number, or a tensor of torch's own class."""
    value = value_of_node(node)
    if node.op != "placeholder" or value is None:
        return False
    return not isinstance(value, torch.Tensor) or type(value) in PLAIN


def _is_view(node: fx.Node) -> bool:
    """Whether the node starts no kernel: each of its tensors lies in the memory of one of its arguments."""
    if node.op not in ("call_function", "call_method") or changes_in_place(node) or _is_of_region(node):
        return False
    sources = {_memory(x) for argument in node.all_input_nodes for x in _tensors(argument)}
    results = list(_tensors(node))
    return bool(results) and all(_memory(x) in sources for x in results)


def _is_of_region(node: fx.Node) -> bool:
    """Whether the node is a region, or a result of one."""
    return _is_region(node) or (node.target is operator.getitem and _is_region(node.args[0]))


def _is_region(node: object) -> bool:
    return isinstance(node, fx.Node) and node.target is torch.ops.onepass.region.default


def _tensors(node: fx.Node) -> Iterator[torch.Tensor]:
    return (x for x in tree_leaves(value_of_node(node)) if isinstance(x, torch.Tensor))


def _memory(value: torch.Tensor) -> int:
    return value.untyped_storage()._cdata

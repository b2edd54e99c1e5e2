"""Inductor writes the mask of a second layer into the first one's memory, the same tensor with the same version: its
block map was taken for the first one's, and the second layer hid other keys than it should."""

import math
import os

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from onepass.api.backend import onepass_backend
from onepass.compiler.options import Options
from onepass.graph_passes.pipeline import rewrite
from onepass.lowering.masks.block_map import MapCache, NamedTensors
from onepass.lowering.triton import launch

LENGTH, WIDTH = 1100, 16


def _layer(q, x, w):
    """Each layer hides keys by an importance of its own."""
    keep = torch.nn.functional.layer_norm((q * w).amax(-1), (LENGTH,)) > 0
    return q + (q @ x.mT / math.sqrt(WIDTH)).masked_fill(~keep[:, None, :], -math.inf).softmax(-1) @ x


def _two_layers(q, x, one, other):
    return _layer(_layer(q, x, one), x, other)


def _inputs():
    torch.manual_seed(0)
    q, x = torch.randn(2, 1, LENGTH, WIDTH)
    q[:, :, 0] = torch.where(torch.arange(LENGTH) < 300, 9.0, -9.0)
    weight = torch.zeros(WIDTH)
    weight[0] = 1
    return q, x, weight, -weight


def _sources(function, inner):
    """What the calls of a graph say that their tensors are."""
    graphs = []

    def backend(graph, example_inputs):
        # Without rivals: a graph of which Inductor was measured to be faster, here or by another test, keeps no region.
        rewrite(graph.graph, Options.read({"inner": inner, "libraries": False}))
        graphs.extend(module.graph for module in graph.modules() if isinstance(module, torch.fx.GraphModule))
        return graph.forward

    torch._dynamo.reset()
    torch.compile(function, backend=backend)(*_inputs())
    nodes = [n for graph in graphs for n in graph.nodes]
    return [n.args[3].split(",") for n in nodes if n.target is torch.ops.onepass.region.default]


def test_a_call_says_what_its_tensors_are_where_memory_is_used_again():
    first, second = _sources(_two_layers, "inductor")
    assert len(set(first) - set(second)) == len(set(second) - set(first)) == 2, "x alone is one tensor for both"
    assert _sources(_two_layers, "eager") == [[""], [""]], "eager counts versions"


def test_views_of_an_input_are_what_the_input_is():
    def twice(q, x, one, other):
        attend = lambda q, k: (q @ k.mT / 4).softmax(-1) @ k
        return attend(attend(q, x[:, :50]), x[:, 50:100])

    first, second = _sources(twice, "inductor")
    assert len({*first, *second}) == 3, "q, x, and what the first attention makes"


class _Reading:
    """A tiling of a map that these tensors say."""

    reads = ("mask",)


@pytest.mark.parametrize("name", ["whole", "view"])
def test_what_a_tensor_is_does_not_depend_on_what_else_is_read(name):
    """The kernel reads a view of x and no x, or what an earlier stage made: the names stood by their order."""
    x, mask, built, maps = torch.randn(4, 4), torch.ones(4, 4), [], MapCache()
    read = {"mask": mask if name == "whole" else mask[::2], "view0": x[::2], "made": torch.zeros(4)}
    for names in ("buf0,buf1", "buf0,buf1", "buf0,buf2", "buf3,buf2"):
        with NamedTensors([x, mask], names):
            maps.get(_Reading, read, lambda *_: (built.append(0), torch.zeros(1))[1:])
    assert len(built) == 2, "for each source of the mask"


@pytest.mark.slow
@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="needs Triton's interpreter")
@pytest.mark.parametrize("inner", ["eager", "inductor"])
def test_each_layer_has_a_map_of_its_own_mask(inner, monkeypatch):
    built = []
    monkeypatch.setattr(
        launch,
        "build_map",
        lambda *given, inside=launch.build_map: (built.append(given), inside(*given))[1],
    )
    torch._dynamo.reset()
    options = {"inner": inner, "executor": "triton", "strict": True}
    inputs = _inputs()
    with torch.no_grad():
        result = torch.compile(_two_layers, backend=onepass_backend, options=options)(*inputs)
    assert len(built) == 2 and torch.allclose(result, _two_layers(*inputs), atol=1e-4)


def _checkpointed(q, x, one, other):
    return checkpoint(_layer, checkpoint(_layer, q, x, one, use_reentrant=False), x, other, use_reentrant=False)


def _whole_checkpointed(q, x, one, other):
    return checkpoint(_two_layers, q, x, one, other, use_reentrant=False)


@pytest.mark.slow
@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="needs Triton's interpreter")
def test_each_layer_has_a_map_of_its_own_mask_in_training():
    """What a checkpoint does not save is memory that may be used again, in the forward and where it runs again."""
    torch._dynamo.reset()
    options = {"inner": "inductor", "executor": "triton", "strict": True}
    q, *others = _inputs()
    q.requires_grad_()
    found = torch.compile(_whole_checkpointed, backend=onepass_backend, options=options)(q, *others)
    exact = _two_layers(*(x.double() for x in (q, *others)))
    torch.testing.assert_close(found, exact, check_dtype=False, atol=1e-4, rtol=1e-4)
    mine, wanted = (torch.autograd.grad(r.square().mean(), q)[0] for r in (found, exact))
    torch.testing.assert_close(mine, wanted, check_dtype=False, atol=1e-5, rtol=1e-4)


@pytest.mark.slow
def test_values_of_two_checkpoints_have_names_of_their_own():
    first, second = _sources(_checkpointed, "inductor")
    assert len(set(first) - set(second)) == len(set(second) - set(first)) == 2, "x alone is one tensor for both"
    assert _sources(_checkpointed, "eager") == [[""], [""]]

"""Paths of modules as users write them, from what Dynamo notes."""

import pytest
import torch
from torch import fx

from onepass.graph.nodes import layer_of, plain_path


@pytest.mark.parametrize(
    ("path", "plain"),
    [
        ("L['self'].model.layers.0.self_attn", "model.layers.0.self_attn"),
        ("L['self']._modules['layers']._modules['3']", "layers.3"),
        ("L['args'][0].model.layers[1].attention", "model.layers.1.attention"),
        ("L['self'].blocks[1]@2", "blocks.1"),
        ("G['decoder']._orig_mod.attention", "decoder.attention"),
        ("L['self']", ""),
        ("", ""),
    ],
)
def test_a_path_is_what_users_write(path, plain):
    assert plain_path(path) == plain


def test_the_innermost_module_with_a_path_counts():
    node = fx.Graph().placeholder("x")
    assert layer_of(node) == ""
    node.meta["nn_module_stack"] = {"a": ("L['self']", torch.nn.Module), "b": ("L['self'].attention", torch.nn.Module)}
    assert layer_of(node) == "attention"
    node.meta["nn_module_stack"] = {"a": ("L['self']", torch.nn.Module)}
    assert layer_of(node) == ""

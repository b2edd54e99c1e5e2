"""Names for readers: the user's, as far as Dynamo's graph has them, on graphs that Dynamo makes."""

import pytest
import torch

from onepass.graph.value_names import name_for_readers, plain_name


class Layers(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.q_proj = torch.nn.Linear(4, 4)
        self.slopes = torch.nn.Parameter(torch.ones(2))

    def forward(self, x, y):
        named = x.mT
        named = named + self.slopes[:, None, None]
        return self.q_proj(x).view(2, 3, 2, 2).transpose(1, 2) @ y.unbind(0)[0].mT, named * 2


def names_of(model, *inputs):
    """The name for readers of each node, by its own name."""
    graphs = []
    torch._dynamo.reset()
    torch.compile(model, backend=lambda gm, _: graphs.append(gm.graph) or gm)(*inputs)
    return {node.name: name_for_readers(node) for node in graphs[0].nodes}


def test_values_have_the_names_of_arguments_variables_and_modules():
    names = names_of(Layers(), torch.ones(2, 3, 4), torch.ones(2, 2, 2))
    assert names["l_x_"] == "x" and names["l_self_parameters_slopes_"] == "slopes"
    assert names["named"] == "named"
    assert names["named_1"] == "named"
    assert names["linear"] == "q_proj"
    assert names["transpose"] == "q_proj_transpose"
    (key,) = (name for own, name in names.items() if own.startswith("getattr"))
    assert key == "y_mT"
    assert names["getitem"] == "slopes"
    assert names["mul"] == "mul"


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        ("l_q_", "q"),
        ("L_self_modules_layers_modules_0_modules_attn_parameters_sinks_", "attn_sinks"),
        ("l_self_buffers_mask_", "mask"),
        ("arg0.1", "arg0_1"),
        ("_", "x"),
    ],
)
def test_names_of_inputs_are_plain(name, plain):
    assert plain_name(name) == plain

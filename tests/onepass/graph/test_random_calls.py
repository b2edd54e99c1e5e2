"""Random calls get seeds, and those that no region takes in are again what they were."""

import pytest
import torch
import torch.nn.functional as F
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

import onepass.operator  # noqa: F401  (registers the operation)
from onepass.graph.random_calls import MARK, draw_seeds, draws, remove_seeds

INPUT = torch.randn(2, 4, 8)


def graph_of(function, count=1):
    """Dynamo's graph of a function."""
    graphs = []

    def keep(module, example_inputs):
        graphs.append(module)
        return module.forward

    torch._dynamo.reset()
    torch.compile(function, backend=keep)(*[INPUT] * count)
    return graphs[0].graph


def names(graph):
    return [str(n.target) for n in graph.nodes if n.op == "call_function"]


def shown(graph):
    return [(n.op, str(n.target), str(n.args), str(n.kwargs)) for n in graph.nodes]


CALLS = {
    "by default": lambda x: F.dropout(x),
    "by position": lambda x: F.dropout(x, 0.1, True),
    "by name": lambda x: F.dropout(input=x, p=0.1, training=True),
    "of torch": lambda x: torch.dropout(x, 0.1, True),
    "all": lambda x: F.dropout(x, 1.0),
    "of a module": torch.nn.Dropout(0.3),
    "attention": lambda x: F.scaled_dot_product_attention(x, x, x, dropout_p=0.1),
    "causal attention": lambda x: F.scaled_dot_product_attention(x, x, x, None, 0.1, is_causal=True, scale=0.3),
    "masked attention": lambda x: F.scaled_dot_product_attention(x, x, x, x @ x.mT, dropout_p=0.1),
}
STAY = {
    "in eval": lambda x: F.dropout(x, 0.1, False),
    "of nothing": lambda x: F.dropout(x, 0.0),
    "of channels": lambda x: F.dropout1d(x, 0.1),
    "in place": lambda x: F.dropout(x * 1, 0.1, inplace=True),
    "attention without dropout": lambda x: F.scaled_dot_product_attention(x, x, x),
    "the user's own numbers": lambda x: x * torch.rand(2, 4, 8),
    "numbers like a tensor": lambda x: x * (torch.rand_like(x) > 0.3),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_call_gets_a_seed_in_front_and_loses_it_again(name):
    graph = graph_of(CALLS[name])
    before = shown(graph)
    draw_seeds(graph)
    (seeded,) = (n for n in graph.nodes if MARK in n.meta)
    assert seeded.target.namespace == "onepass" and draws(seeded)
    seed = seeded.args[-1]
    assert seed is seeded.prev and seed.target is torch.randint
    known = seed.meta["example_value"]
    assert (known.shape, known.dtype, known.device) == ((2,), torch.int64, seeded.meta["example_value"].device)
    graph.lint()
    remove_seeds(graph)
    assert shown(graph) == before


@pytest.mark.parametrize("name", CALLS)
def test_a_graph_with_seeds_computes(name):
    graph = graph_of(CALLS[name])
    draw_seeds(graph)
    module = fx.GraphModule({}, graph)
    results = []
    for _ in range(2):
        torch.manual_seed(3)
        results.append(module(INPUT)[0])
    assert torch.equal(*results) and results[0].shape == CALLS[name](INPUT).shape


@pytest.mark.parametrize("name", STAY)
def test_other_calls_stay(name):
    graph = graph_of(STAY[name])
    before = shown(graph)
    draw_seeds(graph)
    assert shown(graph) == before


def test_a_seed_that_is_read_elsewhere_stays_with_its_call():
    graph = graph_of(lambda x: F.dropout(x))
    draw_seeds(graph)
    (seeded,) = (n for n in graph.nodes if MARK in n.meta)
    with graph.inserting_after(seeded):
        graph.call_function(torch.ops.onepass.region.default, ([seeded.args[-1]], "", []))
    remove_seeds(graph)
    assert seeded.target is torch.ops.onepass.dropout.default


def test_what_a_call_reads_may_be_replaced_while_it_has_a_seed():
    graph = graph_of(lambda x: F.dropout(x * 2, 0.1))
    draw_seeds(graph)
    (product,) = (n for n in graph.nodes if n.name.startswith("mul"))
    with graph.inserting_after(product):
        other = graph.call_function(torch.neg, (product.args[0],))
    product.replace_all_uses_with(other)
    remove_seeds(graph)
    (dropped,) = (n for n in graph.nodes if n.target is F.dropout)
    assert dropped.args[0] is other


def test_random_numbers_of_aten_get_a_seed():
    """Inductor makes them of dropout before its passes run."""
    graph = make_fx(lambda x: torch.rand([2, 4, 8], device=x.device) > 0.5, tracing_mode="fake")(INPUT).graph
    before = shown(graph)
    draw_seeds(graph)
    assert names(graph)[:2] == ["aten.randint.low", "onepass.uniform_numbers.default"]
    assert fx.GraphModule({}, graph)(INPUT).shape == INPUT.shape
    remove_seeds(graph)
    assert shown(graph) == before

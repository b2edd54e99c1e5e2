"""Compiled attention: few graphs for many lengths, fused, right against float64, inlined where a caller compiles."""

import inspect

import pytest
import torch

import onepass
from onepass.errors import OptionError
from onepass.integrations.attention import AttentionVariant, attend
from onepass.integrations.compiled import CompiledAttention

pytestmark = pytest.mark.usefixtures("fresh")
EAGER = {"inner": "eager"}
CAUSAL = AttentionVariant(scaling=0.25, causal=True)


def inputs(queries, keys, batch=2):
    return {
        "query": torch.randn(batch, 4, queries, 8),
        "key": torch.randn(batch, 2, keys, 8),
        "value": torch.randn(batch, 2, keys, 8),
    }


def holds(compiled, variant, tensors):
    exact = attend(**{name: x if x.dtype == torch.bool else x.double() for name, x in tensors.items()}, variant=variant)
    torch.testing.assert_close(compiled(variant, **tensors).double(), exact, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_other_lengths_and_batches_need_no_other_graph():
    compiled = CompiledAttention(EAGER)
    for length, batch in ((6, 2), (9, 3), (33, 2), (70, 5)):
        holds(compiled, CAUSAL, inputs(length, length, batch))
    assert [len(report.regions) for report in onepass.reports()] == [1]


@pytest.mark.slow
def test_a_growing_cache_needs_one_graph_with_a_mask_and_one_without():
    compiled, decoding = CompiledAttention(EAGER), AttentionVariant(scaling=0.25)
    for keys in range(5, 12):
        holds(compiled, decoding, inputs(1, keys))
        holds(compiled, decoding, {**inputs(1, keys), "mask": torch.rand(2, 1, 1, keys) < 0.7})
    assert [len(report.regions) for report in onepass.reports()] == [1, 1]


@pytest.mark.slow
def test_a_variant_is_a_constant_of_its_graph():
    compiled = CompiledAttention(EAGER)
    for variant in (AttentionVariant(0.25), AttentionVariant(0.5, softcap=2.0), AttentionVariant(0.25)):
        holds(compiled, variant, inputs(4, 7))
    first, second = onepass.reports()
    assert "· 0.25" in str(first) and "tanh" in str(second) and "· 2\n" in str(second)


@pytest.mark.slow
@pytest.mark.skipif(
    "isolate_recompiles" not in inspect.signature(torch.compile).parameters, reason="this torch has one limit for all"
)
@torch._dynamo.config.patch(recompile_limit=2)
def test_many_variants_reach_no_limit_of_graphs():
    compiled, graphs = CompiledAttention(EAGER), []

    def backend(graph, _):
        graphs.append(graph)
        return graph.forward

    compiled.backend = backend
    for number in range(4):
        compiled(AttentionVariant(scaling=1 / (number + 1)), **inputs(3, 3))
    assert len(graphs) == 4


def test_inside_of_a_compiled_function_it_is_inlined():
    compiled, tensors = CompiledAttention(EAGER), inputs(5, 5)
    graphs = []

    def backend(graph, _):
        graphs.append(graph)
        return graph.forward

    function = torch.compile(lambda query, key, value: compiled(CAUSAL, query=query, key=key, value=value) + 1,
                             backend=backend, fullgraph=True)  # fmt: skip
    torch.testing.assert_close(function(**tensors), attend(**tensors, variant=CAUSAL) + 1)
    assert len(graphs) == 1 and not onepass.reports()


def test_bad_options_raise_when_it_is_made():
    with pytest.raises(OptionError, match="no_such_option"):
        CompiledAttention({"no_such_option": 1})

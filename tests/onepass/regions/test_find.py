"""Regions: what is found in Dynamo's graphs and in ATen graphs, what is copied, what must stay and why.

Graphs come from real compilations with a backend or a pass that only looks.
"""

import math
import time

import pytest
import torch
import torch.nn.functional as F
from torch import fx, nn
from torch._inductor.custom_graph_pass import CustomGraphPass

from onepass import rules
from onepass.api.backend import onepass_backend
from onepass.egraph.derivation.normalize import canonical_names, normalise
from onepass.egraph.terms.traversal import subterms
from onepass.errors import Refusal
from onepass.regions.find import find_regions
from onepass.regions.region import region_module, signature
from onepass.translate.translate import translate
from tests.support import spellings

INFINITY = math.inf


def tensors(*heads, rows=8, columns=8, width=16):
    heads = heads or (4, 4, 4)
    sizes = (rows, columns, columns)
    return [torch.randn(2, h, n, width) for h, n in zip(heads, sizes, strict=True)]


def regions_of(function, *inputs, dynamic=None):
    """The regions of the graph that Dynamo makes of the function, and their programs while the graph is alive."""
    torch._dynamo.reset()
    found = []

    def look(module: fx.GraphModule, _):
        for region in find_regions(module.graph):
            found.append((region, region.program() if region.refusal is None else None))
        return module.forward

    torch.compile(function, backend=look, dynamic=dynamic)(*inputs)
    return found


def aten_regions_of(function, *inputs):
    """The same for the graph that Inductor's joint passes see."""
    torch._dynamo.reset()
    found = []

    class Look(CustomGraphPass):
        def __call__(self, graph):
            found.extend((r, r.program() if r.refusal is None else None) for r in find_regions(graph))

        def uuid(self):
            return None

    with torch.no_grad():
        torch.compile(function, options={"joint_custom_pre_pass": Look()})(*inputs)
    return found


def one(found):
    ((region, program),) = found
    return region, program


@pytest.mark.sampled(6)
@pytest.mark.parametrize("function", spellings.ALL, ids=lambda f: f.__name__)
def test_every_spelling_is_one_region(function):
    inputs = tensors(4, 2, 2) if function in spellings.GROUPED else tensors()
    region, program = one(regions_of(function, *inputs))
    given = dict(zip("qkv", inputs, strict=True))
    result = program.run(*(given[i.name] for i in program.inputs))
    torch.testing.assert_close(result.reshape(inputs[0].shape), function(*inputs))
    assert {i.name for i in program.inputs} == set("qkv")
    assert next(iter(region.output.users)).op == "output" or function is spellings.groups_by_view


def test_a_region_says_where_it_was_written():
    _, program = one(regions_of(spellings.attend, *tensors()))
    assert all("spellings.py:" in n.where for n in program.nodes)


@pytest.mark.slow
@pytest.mark.parametrize("group", ["PLAIN", "CAUSAL"])
def test_aten_graphs_give_the_same_terms(group):
    def normal(function):
        region, program = one(aten_regions_of(function, *tensors()))
        captured = translate(program)
        assert [d.name for d in captured.order] == ["b", "h", "i", "e"], region
        found = canonical_names(normalise(captured.term, rules.NORMAL))
        return len(list(subterms(found))), str(captured.order)

    functions = [f for f in getattr(spellings, group) if "sdpa" not in f.__name__]
    assert len({normal(f) for f in functions}) == 1


def test_symbolic_sizes_stay_symbolic():
    q, k, v = tensors()
    for x in (q, k, v):
        torch._dynamo.mark_dynamic(x, 2)
    _, program = one(regions_of(spellings.causal_tril, q, k, v))
    captured = translate(program)
    assert isinstance(captured.order[2].size, str) and program.symbols
    given = dict(zip("qkv", tensors(rows=5, columns=5), strict=True))
    torch.testing.assert_close(
        program.run(*(given[i.name] for i in program.inputs)), spellings.causal_tril(given["q"], given["k"], given["v"])
    )


def test_everything_may_be_symbolic():
    _, program = one(regions_of(spellings.attend, *tensors(), dynamic=True))
    assert all(isinstance(s, str) for s in program.output_meta.shape)
    assert translate(program).term.dtype == "float32"
    inputs = tensors(3, 3, 3, rows=5, columns=7, width=8)
    given = dict(zip("qkv", inputs, strict=True))
    torch.testing.assert_close(program.run(*(given[i.name] for i in program.inputs)), spellings.attend(*inputs))


class Block(nn.Module):
    """A layer of a GPT: attention in plain PyTorch between two projections, then two layers with a nonlinearity."""

    def __init__(self, width=32, heads=4):
        super().__init__()
        self.heads, self.project, self.out = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.layers = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        batch, rows, width = x.shape
        parts = self.project(self.before(x)).split(width, dim=2)
        q, k, v = (p.view(batch, rows, self.heads, width // self.heads).transpose(1, 2) for p in parts)
        mask = torch.tril(torch.ones(rows, rows, dtype=torch.bool, device=x.device))
        scores = (q @ k.mT / math.sqrt(q.shape[-1])).masked_fill(~mask, -INFINITY)
        y = (F.dropout(torch.softmax(scores, -1), 0.0) @ v).transpose(1, 2).reshape(batch, rows, width)
        x = x + self.out(y)
        return x + self.layers(self.after(x))


@pytest.mark.slow
@pytest.mark.parametrize("look", [regions_of, aten_regions_of])
def test_projections_are_borders(look):
    region, program = one(look(Block().requires_grad_(False), torch.randn(2, 8, 32)))
    assert len(program.inputs) == 1
    assert len(region.inputs) == 1


@pytest.mark.slow
def test_equal_layers_have_one_signature():
    found = regions_of(nn.Sequential(*(Block() for _ in range(4))), torch.randn(2, 8, 32))
    assert len(found) == 4
    assert len({signature(r) for r, _ in found}) == 1
    other = regions_of(Block(heads=2), torch.randn(2, 8, 32))
    assert signature(other[0][0]) != signature(found[0][0])


@pytest.mark.slow
def test_32_layers_are_32_regions():
    seconds = []

    def look(module, _):
        find_regions(module.graph)
        start = time.perf_counter()
        seconds.append((len(find_regions(module.graph)), time.perf_counter() - start))
        return module.forward

    torch._dynamo.reset()
    torch.compile(nn.Sequential(*(Block() for _ in range(32))), backend=look)(torch.randn(1, 4, 32))
    ((count, taken),) = seconds
    assert count == 32
    print(f"find_regions: {taken / 32 * 1e3:.2f} ms per layer")


def document_mask(q, k, v, document):
    keep = document[:, None, :, None] == document[:, None, None, :]
    rows = torch.arange(q.shape[-2])
    return spellings.masked_attend(q, k, v, ~(keep & (rows[:, None] >= rows)))


def test_masks_are_made_inside_of_the_region():
    document = torch.tensor([[0, 0, 0, 1, 1, 2, 2, 2]] * 2)
    _, program = one(regions_of(document_mask, *tensors(), document))
    assert sorted(len(i.meta.shape) for i in program.inputs) == [2, 4, 4, 4]


def position_bias(q, k, v, slopes):
    position = torch.arange(q.shape[-2])
    bias = slopes.view(-1, 1, 1) * (position[None] - position[:, None]).to(q.dtype)
    return torch.softmax(q @ k.mT / 4 + bias, -1) @ v


def test_biases_are_made_inside_of_the_region():
    _, program = one(regions_of(position_bias, *tensors(), torch.rand(4)))
    assert sorted(len(i.meta.shape) for i in program.inputs) == [1, 4, 4, 4]


def test_a_mask_that_two_regions_use_is_copied_into_both():
    def twice(q, k, v):
        mask = ~torch.tril(torch.ones(8, 8, dtype=torch.bool))
        first = spellings.masked_attend(q, k, v, mask)
        return F.layer_norm(first, (16,)), spellings.masked_attend(k, q, v, mask)

    found = regions_of(twice, *tensors())
    assert len(found) == 2
    assert all(len(p.inputs) == 3 for _, p in found)


def differential(q, k, v):
    q1, q2, k1, k2 = *q.chunk(2, -1), *k.chunk(2, -1)
    return torch.softmax(q1 @ k1.mT / 3, -1) @ v - 0.3 * (torch.softmax(q2 @ k2.mT / 3, -1) @ v)


def test_two_sinks_that_are_combined_are_one_region():
    _, program = one(regions_of(differential, *tensors()))
    inputs = tensors()
    given = dict(zip("qkv", inputs, strict=True))
    torch.testing.assert_close(program.run(*(given[i.name] for i in program.inputs)), differential(*inputs))


def test_chains_without_softmax_are_regions():
    for function in (lambda q, k, v: q @ (k.mT @ v), lambda q, k, v: (q @ k.mT) @ v):
        one(regions_of(function, *tensors()))


@pytest.mark.parametrize("shape", [(8, 16), (2, 8, 16)])
def test_layers_of_a_network_are_no_region(shape):
    found = regions_of(lambda x, a, b: F.relu(x @ a) @ b, torch.randn(shape), torch.randn(16, 32), torch.randn(32, 16))
    assert found == []


def test_a_trailing_cast_belongs_to_the_region():
    region, program = one(regions_of(lambda q, k, v: spellings.attend(q, k, v).to(torch.float16), *tensors()))
    assert program.output_meta.dtype == "float16"
    assert region.output is not region.anchor


def test_a_region_is_a_module():
    region, _ = one(regions_of(spellings.attend, *tensors()))
    module = region_module(region)
    given = {"l_q_": 0, "l_k_": 1, "l_v_": 2}
    inputs = tensors()
    ordered = [inputs[given[n.name]] for n in region.inputs]
    torch.testing.assert_close(module(*ordered), (spellings.attend(*inputs),))


# Several results ------------------------------------------------------------------------------------------------------


def weights_too(q, k, v):
    weights = torch.softmax(q @ k.mT, -1)
    return weights @ v, weights


def logsumexp_too(q, k, v):
    scores = q @ k.mT / 4
    return torch.softmax(scores, -1) @ v, torch.logsumexp(scores, -1)


def late_division(q, k, v):
    scores = q @ k.mT
    e = torch.exp(scores - scores.amax(-1, keepdim=True))
    return (e @ v) / e.sum(-1, keepdim=True)


def two_values(q, k, v):
    weights = torch.softmax(q @ k.mT, -1)
    return weights @ v, weights @ (v * v)


def late_value(q, k, v):
    """The logsumexp is used before the values are there."""
    scores = q @ k.mT
    top = torch.logsumexp(scores, -1, keepdim=True)
    shifted = F.layer_norm(v + top.tanh().mean(), (16,))
    return torch.softmax(scores, -1) @ F.layer_norm(v, (16,)), shifted


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "function, count",
    [(weights_too, 2), (logsumexp_too, 2), (late_division, 1), (two_values, 2), (late_value, 2)],
    ids=lambda x: getattr(x, "__name__", x),
)
def test_what_is_used_outside_is_a_result(function, count):
    region, program = one(regions_of(function, *tensors()))
    assert region.refusal is None and len(region.outputs) == len(program.outputs) == count
    torch._dynamo.reset()
    inputs = tensors()
    options = {"inner": "eager", "executor": "tiled", "strict": True}
    fast = torch.compile(function, backend=onepass_backend, options=options)
    found, eager = fast(*inputs), function(*inputs)
    for a, b in zip(*((x if isinstance(x, tuple) else (x,)) for x in (found, eager)), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


# Refusals -------------------------------------------------------------------------------------------------------------


def used_twice(q, k, v):
    """Without a reduction nothing is gained by a second computation of what is stored anyway."""
    weights = (q @ k.mT) * 0.5
    return weights @ v, weights


def changed_scores(q, k, v):
    scores = q @ k.mT
    scores.masked_fill_(torch.ones(8, 8, dtype=torch.bool).triu(1), -INFINITY)
    return torch.softmax(scores, -1) @ v


def changed_mask(q, k, v):
    mask = torch.zeros(8, 8)
    mask[2:, :3] = -INFINITY
    return torch.softmax(q @ k.mT + mask, -1) @ v


def changed_input(q, k, v):
    scores = q @ k.mT
    k.mul_(2.0)
    return torch.softmax(scores, -1) @ k  # as it was, and as it is


def added_in_place(q, k, v):
    scores = q @ k.mT
    scores += 1.0
    return torch.softmax(scores, -1) @ v


def under_autocast(q, k, v):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return torch.softmax(q @ k.mT, -1) @ v


@pytest.mark.parametrize(
    "function, kind, word",
    [
        (used_twice, "used outside", "mul"),
        (changed_scores, "in-place", "masked_fill_"),
        (changed_input, "in-place", "mul_"),
        (added_in_place, "in-place", "iadd"),
        (under_autocast, "autocast", "autocast"),
    ],
)
def test_a_region_that_must_stay_says_why(function, kind, word):
    (region, _), *_ = regions_of(function, *tensors())
    assert region.refusal.kind == kind
    assert word in region.refusal.reason
    assert "test_find.py:" in region.refusal.where
    with pytest.raises(Refusal):
        region.program()


def test_a_mask_written_in_place_is_an_input():
    inputs = tensors()
    region, _ = one(regions_of(changed_mask, *inputs))
    assert region.refusal is None and "mask" in [n.name for n in region.inputs]
    fast = torch.compile(changed_mask, backend=onepass_backend, options={"inner": "eager", "executor": "tiled"})
    torch.testing.assert_close(fast(*inputs), changed_mask(*inputs))


def test_a_write_elsewhere_disturbs_nobody():
    def elsewhere(q, k, v, other):
        scores = q @ k.mT
        other.add_(1.0)
        return torch.softmax(scores, -1) @ v

    region, _ = one(regions_of(elsewhere, *tensors(), torch.zeros(3)))
    assert region.refusal is None


def test_a_cache_that_is_filled_before_it_is_read_disturbs_nobody():
    def decode(q, k, v, cache):
        rows = torch.arange(8)
        cache[:, :, :8] = k
        scores = (q @ cache[:, :, :8].mT).masked_fill(rows[:, None] < rows, -INFINITY)
        return torch.softmax(scores, -1) @ v

    region, program = one(regions_of(decode, *tensors(), torch.zeros(2, 4, 20, 16)))
    assert region.refusal is None and len(program.inputs) == 3


def test_a_region_under_vmap_stays():
    q, k, v = (x[0, 0][None].repeat(3, 1, 1) for x in tensors())
    found = regions_of(lambda q, k, v: torch.vmap(spellings.attend)(q, k, v), q, k, v)
    assert all(r.refusal is not None and "transform" in r.refusal.reason for r, _ in found)


def test_a_refused_layer_does_not_stand_for_the_others():
    def layers(q, k, v):
        first, weights = used_twice(q, k, v)
        return spellings.attend(F.layer_norm(first, (16,)), k, v), torch.softmax(q @ k.mT, -1) @ v, weights

    found = regions_of(layers, *tensors())
    refused = [r for r, _ in found if r.refusal]
    assert len(refused) == 1
    assert signature(refused[0]) not in {signature(r) for r, _ in found if not r.refusal}

"""Decoding with a cache that is written in place: attention over it is fused, the writes stay where they stand.

One graph serves every position. A region that reads before a write and what
is written behind it stays as it is, and says so.
"""

import math

import pytest
import torch

from onepass import process_state
from onepass.api.backend import onepass_backend
from onepass.report import records

LENGTH, WIDTH, STEPS = 40, 16, 4


def attend(q, keys, values, place):
    scores = q @ keys.mT / math.sqrt(WIDTH)
    hidden = torch.arange(keys.shape[2]) > place[:, None]
    return scores.masked_fill(hidden, -math.inf).softmax(-1) @ values


def copied(q, k, v, keys, values, place):
    keys.index_copy_(2, place, k)
    values.index_copy_(2, place, v)
    return attend(q, keys, values, place)


def copies_used(q, k, v, keys, values, place):
    return attend(q, keys.index_copy_(2, place, k), values.index_copy_(2, place, v), place)


def assigned(q, k, v, keys, values, place):
    keys[:, :, place] = k
    values[:, :, place] = v
    return attend(q, keys, values, place)


def scattered(q, k, v, keys, values, place):
    index = place[:, None].expand(k.shape)
    keys.scatter_(2, index, k)
    values.scatter_(2, index, v)
    return attend(q, keys, values, place)


def written_again_later(q, k, v, keys, values, place):
    result = copied(q, k, v, keys, values, place)
    keys.mul_(0.5)
    return result


def two_layers(q, k, v, keys, values, place):
    (k1, k2), (v1, v2) = (x.chunk(2, 1) for x in (keys, values))
    first = copied(q[:, :1], k[:, :1], v[:, :1], k1, v1, place)
    return copied(first, first, first + 1.0, k2, v2, place)


def counted(q, k, v, keys, values, place, count):
    """As in transformers: the mask reads a counter, which is moved on before the attention."""
    mask = torch.where(torch.arange(keys.shape[2]) <= torch.arange(1)[:, None] + count, 0.0, torch.finfo(q.dtype).min)
    place = torch.arange(1) + count
    count.add_(1)
    keys.index_copy_(2, place, k)
    values.index_copy_(2, place, v)
    return torch.softmax(q @ keys.mT / math.sqrt(WIDTH) + mask, -1) @ values


def scores_of_the_old_cache(q, k, v, keys, values, place):
    scores = q @ keys.mT
    keys.index_copy_(2, place, k)
    return scores.softmax(-1) @ values + keys.sum()


def weights_of_the_old_cache(q, k, v, keys, values, place):
    weights = (q @ keys.mT).softmax(-1)
    copied(q, k, v, keys, values, place)
    return weights @ values


def decoded(step, heads, more, run):
    """The results of a few steps, and the caches behind them."""
    torch.manual_seed(0)
    caches = [torch.zeros(1, heads, LENGTH, WIDTH) for _ in range(2)]
    state = [torch.tensor([0]) for _ in range(more)]
    results = []
    for position in range(STEPS):
        new = [torch.randn(1, heads, 1, WIDTH) for _ in range(3)]
        with torch.no_grad():
            results.append(run(*new, *caches, torch.tensor([position]), *state).clone())
    return [*results, *caches, *state]


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "step, regions",
    [
        (copied, 1),
        (copies_used, 1),
        (assigned, 1),
        (scattered, 1),
        (written_again_later, 1),
        (two_layers, 2),
        (counted, 1),
        (scores_of_the_old_cache, 1),
        (weights_of_the_old_cache, 0),
    ],
    ids=lambda x: getattr(x, "__name__", None),
)
def test_steps(step, regions):
    graphs = []

    def backend(module, example_inputs):
        graphs.append(module)
        return onepass_backend(module, example_inputs, options={"inner": "eager", "executor": "tiled", "strict": True})

    torch._dynamo.reset()
    process_state.forget("reports")
    settings = step, 2, int(step is counted)
    found = decoded(*settings, torch.compile(step, backend=backend))
    for mine, eager in zip(found, decoded(*settings, step), strict=True):
        torch.testing.assert_close(mine, eager, rtol=1e-4, atol=1e-5)
    assert len(graphs) == 1, "a position is no reason to compile again"
    (said,) = records.reports()
    assert sum(r.count for r in said.regions) == regions
    assert [r.kind for r in said.refusals] == ([] if regions else ["in-place"])


@pytest.mark.slow
def test_a_model_generates_with_its_static_cache():
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = transformers.LlamaConfig(vocab_size=50, attn_implementation="eager", **sizes)
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config).eval()
    tokens = torch.arange(5)[None] + 3
    asked = {"max_new_tokens": 6, "do_sample": False, "cache_implementation": "static", "disable_compile": True}
    plain = model.generate(tokens, **asked)
    torch._dynamo.reset()
    process_state.forget("reports")
    options = {"inner": "eager", "executor": "tiled"}
    model.forward = torch.compile(model.forward, backend=onepass_backend, options=options)
    assert torch.equal(model.generate(tokens, **asked), plain)
    assert [sum(r.count for r in said.regions) for said in records.reports()] == [2, 2]  # the prompt, and every step
    assert not any(said.refusals for said in records.reports())
